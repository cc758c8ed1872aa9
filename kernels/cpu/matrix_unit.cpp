#include "kernels/cpu/matrix_unit.h"

#include <immintrin.h>
#include <oneapi/dnnl/dnnl.h>

#include <array>

#include "tessera/error.h"

#define TESSERA_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace tessera::kernels::cpu {
namespace {

// The layout that LDTILECFG reads (Intel 64 Manual, volume 1, chapter 18): all eight tiles of 16 rows of 64
// bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved = {};
  std::array<std::uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
  std::array<std::uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

constexpr std::int64_t kBlock = 32;  // rows and columns of two by two tiles, and the depth of one
constexpr std::int64_t kTileRows = 16;

// The compiler does not know that the instructions read and write memory.
void order_memory() { asm volatile("" ::: "memory"); }

TESSERA_AMX void configure() {
  const TileConfiguration configuration;
  order_memory();
  _tile_loadconfig(&configuration);
}

TESSERA_AMX void release() { _tile_release(); }

// 32 by 32 of c: tiles 0 to 3; of a tiles 4 and 5, of b 6 and 7.
TESSERA_AMX void multiply_block(const MatrixUnit::Extents& of, const Bf16* a, const Bf16* b, float* c,
                                bool add) {
  const std::int64_t a_row = of.k * 2, b_row = of.n * 4, c_row = of.n * 4;  // bytes
  float* lower = c + kTileRows * of.n;
  if (add) {
    _tile_loadd(0, c, c_row);
    _tile_loadd(1, c + kTileRows, c_row);
    _tile_loadd(2, lower, c_row);
    _tile_loadd(3, lower + kTileRows, c_row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < of.k; k += kBlock) {
    const Bf16* right = b + k * of.n;
    _tile_loadd(4, a + k, a_row);
    _tile_loadd(6, right, b_row);
    _tile_loadd(7, right + 2 * kTileRows, b_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileRows * of.k + k, a_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_row);
  _tile_stored(1, c + kTileRows, c_row);
  _tile_stored(2, lower, c_row);
  _tile_stored(3, lower + kTileRows, c_row);
}

}  // namespace

bool has_matrix_unit() {
  static const bool has =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
  return has;
}

MatrixUnit::MatrixUnit() {
  if (!has_matrix_unit()) throw UnsupportedError("this processor has no matrix unit for bf16 (AMX)");
  configure();
}
MatrixUnit::~MatrixUnit() { release(); }

void MatrixUnit::multiply(const Extents& of, const Bf16* a, const Bf16* b, float* c, bool add) const {
  order_memory();
  for (std::int64_t row = 0; row < of.m; row += kBlock)
    for (std::int64_t column = 0; column < of.n; column += kBlock)
      multiply_block(of, a + row * of.k, b + 2 * column, c + row * of.n + column, add);
  order_memory();
}

}  // namespace tessera::kernels::cpu
