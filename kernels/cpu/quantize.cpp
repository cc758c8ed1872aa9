#include "kernels/quantize.h"

#include <algorithm>

#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/parallel.h"
#include "kernels/fp8_math.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

#ifndef TESSERA_KERNELS_CPU_FP8_REGION
#define TESSERA_KERNELS_CPU_FP8_REGION
namespace tessera::kernels {

// At most 128 rows and 128 columns of the result, of whole tiles. `in` has a row of the input for each row of
// the result or, where it is transposed, for each column.
struct Fp8Region {
  std::int64_t rows, columns;
  const std::uint16_t* in;
  std::int64_t in_stride;
  std::uint8_t* out;
  std::int64_t out_stride;
  float* scales;  // one, or one for each row
  bool transposed, blocks;
};

// The same of a matrix in fp8 that becomes bf16 again; it lies as the result does.
struct Fp8Values {
  std::int64_t rows, columns, stride;  // of both
  const std::uint8_t* in;
  Bf16* out;
  const float* scales;
  bool blocks;
};

}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

// Like e4m3_of().
HWY_INLINE IntVector e4m3_bits(FloatVector value) {
  const IntTag d;
  const FloatTag df;
  const WordTag du;
  const IntVector bits = hn::BitCast(d, value);
  const IntVector sign = hn::And(hn::BitCast(d, hn::ShiftRight<24>(hn::BitCast(du, bits))), hn::Set(d, 0x80));
  const IntVector magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const IntVector subnormal = hn::Sub(
      hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0x1p14f))), hn::Set(d, 0x46800000));
  const IntVector odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d, 1));
  const IntVector normal =
      hn::Sub(hn::ShiftRight<20>(hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0x7ffff)))), hn::Set(d, 0x3c0));
  IntVector code =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x3c800000)), subnormal, hn::Min(normal, hn::Set(d, 0x7e)));
  code = hn::Or(code, sign);
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7f800000)), hn::Set(d, kE4m3Nan), code);
}

HWY_INLINE void store_quantized(V16 value, std::uint8_t* p) {
  for (int i = 0; i < kParts; ++i)
    hn::StoreU(hn::DemoteTo(ByteTag(), e4m3_bits(value.part[i])), ByteTag(), p + i * kVectorLanes);
}

HWY_INLINE V16 load_elements(const std::uint16_t* p) { return load16(reinterpret_cast<const Bf16*>(p)); }

// largest[c] is the largest magnitude of column c; both extents are multiples of 16.
HWY_INLINE void largest_of_columns(const std::uint16_t* in, std::int64_t stride, std::int64_t lines,
                                   std::int64_t columns, std::uint16_t* HWY_RESTRICT largest) {
  const hn::CappedTag<std::uint16_t, 16> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = 0; c < columns; c += lanes) {
    auto most = hn::Zero(d);
    for (std::int64_t line = 0; line < lines; ++line)
      most = hn::Max(most, hn::And(hn::LoadU(d, in + line * stride + c), hn::Set(d, 0x7fff)));
    hn::StoreU(most, d, largest + c);
  }
}

HWY_INLINE std::uint32_t largest_of(const std::uint16_t* values, std::int64_t count) {
  return *std::max_element(values, values + count);
}

void quantize_straight(const Fp8Region& of) {
  std::uint16_t largest[kFp8Tile];
  TileScale scale;
  if (of.blocks) {
    largest_of_columns(of.in, of.in_stride, of.rows, of.columns, largest);
    scale = tile_scale(largest_of(largest, of.columns));
    *of.scales = scale.scale;
  }
  for (std::int64_t row = 0; row < of.rows; ++row) {
    const std::uint16_t* const in = of.in + row * of.in_stride;
    if (!of.blocks) {
      largest_of_columns(in, 16, of.columns / 16, 16, largest);  // the row as lines of 16
      scale = tile_scale(largest_of(largest, 16));
      of.scales[row] = scale.scale;
    }
    const V16 inverse = set16(scale.inverse);
    for (std::int64_t c = 0; c < of.columns; c += 16)
      store_quantized(mul(load_elements(in + c), inverse), of.out + row * of.out_stride + c);
  }
}

// Sixteen rows of the result at a time: each is a column of the input.
void quantize_transposed(const Fp8Region& of) {
  std::uint16_t largest[kFp8Tile];
  float inverses[kFp8Tile];
  largest_of_columns(of.in, of.in_stride, of.columns, of.rows, largest);
  if (of.blocks) {
    const TileScale scale = tile_scale(largest_of(largest, of.rows));
    *of.scales = scale.scale;
    std::fill_n(inverses, of.rows, scale.inverse);
  } else {
    for (std::int64_t row = 0; row < of.rows; ++row) {
      const TileScale scale = tile_scale(largest[row]);
      of.scales[row] = scale.scale;
      inverses[row] = scale.inverse;
    }
  }
  for (std::int64_t row = 0; row < of.rows; row += 16) {
    std::uint8_t lines[kFp8Tile][16];
    const V16 inverse = load16(inverses + row);
    for (std::int64_t c = 0; c < of.columns; ++c)
      store_quantized(mul(load_elements(of.in + c * of.in_stride + row), inverse), lines[c]);
    for (std::int64_t r = 0; r < 16; ++r) {
      std::uint8_t* const out = of.out + (row + r) * of.out_stride;
      for (std::int64_t c = 0; c < of.columns; ++c) out[c] = lines[c][r];
    }
  }
}

void quantize_region(const Fp8Region& of) { of.transposed ? quantize_transposed(of) : quantize_straight(of); }

// Like to_float(E4m3).
HWY_INLINE FloatVector e4m3_floats(IntVector bits) {
  const IntTag d;
  const FloatTag df;
  const IntVector magnitude = hn::And(bits, hn::Set(d, 0x7f));
  const FloatVector normal = hn::BitCast(df, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(d, 0x3c000000)));
  const FloatVector subnormal = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-9f));
  FloatVector value = hn::IfThenElse(hn::RebindMask(df, hn::Lt(magnitude, hn::Set(d, 8))), subnormal, normal);
  value = hn::IfThenElse(hn::RebindMask(df, hn::Eq(magnitude, hn::Set(d, kE4m3Nan))),
                         hn::BitCast(df, hn::Set(d, 0x7fc00000)), value);
  return hn::Or(value, hn::BitCast(df, hn::ShiftLeft<24>(hn::And(bits, hn::Set(d, 0x80)))));
}

void dequantize_region(const Fp8Values& of) {
  for (std::int64_t row = 0; row < of.rows; ++row) {
    const V16 scale = set16(of.scales[of.blocks ? 0 : row]);
    for (std::int64_t c = 0; c < of.columns; c += 16) {
      const std::int64_t at = row * of.stride + c;
      V16 value;
      for (int i = 0; i < kParts; ++i)
        value.part[i] =
            e4m3_floats(hn::PromoteTo(IntTag(), hn::LoadU(ByteTag(), of.in + at + i * kVectorLanes)));
      store16(mul(value, scale), of.out + at);
    }
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(quantize_region);
HWY_EXPORT(dequantize_region);

namespace {

constexpr std::int64_t kTile = kFp8Tile;

// Calls function(row, column, rows, columns) for each square of 128 rows and columns.
template <class Function>
void for_squares(const ComputeContext& context, std::int64_t rows, std::int64_t columns,
                 Function&& function) {
  const std::int64_t across = (columns + kTile - 1) / kTile;
  const std::int64_t squares = (rows + kTile - 1) / kTile * across;
  parallel_ranges(context.threads, squares, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t square = begin; square < end; ++square) {
      const std::int64_t row = square / across * kTile, column = square % across * kTile;
      function(row, column, std::min(kTile, rows - row), std::min(kTile, columns - column));
    }
  });
}

}  // namespace

void quantize(const ComputeContext& context, const QuantizeShape& s, const void* input, void* values,
              float* scales) {
  const auto* const in = static_cast<const std::uint16_t*>(input);
  auto* const out = static_cast<std::uint8_t*>(values);
  for_squares(context, s.rows, s.columns, [&](auto row, auto column, auto rows, auto columns) {
    HWY_DYNAMIC_DISPATCH(quantize_region)
    ({.rows = rows,
      .columns = columns,
      .in = in + (s.transposed ? column * s.input_stride() + row : row * s.input_stride() + column),
      .in_stride = s.input_stride(),
      .out = out + row * s.columns + column,
      .out_stride = s.columns,
      .scales = scales + s.scale_at(row, column),
      .transposed = s.transposed,
      .blocks = s.tiles == Fp8Tiles::blocks});
  });
}

void dequantize(const ComputeContext& context, const QuantizeShape& s, const Fp8Matrix& matrix,
                Bf16* output) {
  const auto* const in = static_cast<const std::uint8_t*>(matrix.values);
  for_squares(context, s.rows, s.columns, [&](auto row, auto column, auto rows, auto columns) {
    const std::int64_t at = row * s.columns + column;
    HWY_DYNAMIC_DISPATCH(dequantize_region)
    ({.rows = rows,
      .columns = columns,
      .stride = s.columns,
      .in = in + at,
      .out = output + at,
      .scales = matrix.scales + s.scale_at(row, column),
      .blocks = s.tiles == Fp8Tiles::blocks});
  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
