#include "src/cli/prepare/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 18;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw EnvironmentError(fmt::format("data prepare: '{}' {}", escaped(path), what));
}

// The file as it is.
class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb")) {
    if (!file_) refuse(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  std::size_t read(std::span<char> to) override {
    const std::size_t got = std::fread(to.data(), 1, to.size(), file_.get());
    if (got < to.size() && std::ferror(file_.get()) != 0)
      refuse(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
    consumed_ += static_cast<std::int64_t>(got);
    return got;
  }
  std::int64_t consumed() const override { return consumed_; }
  const std::string& path() const { return path_; }
  void rewind() {
    std::rewind(file_.get());
    consumed_ = 0;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::int64_t consumed_ = 0;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<PlainStream> file) : file_(std::move(file)), block_(kBlockBytes) {
    constexpr int kGzip = 16;  // added to the window: gzip's header, not zlib's
    if (inflateInit2(&state_, MAX_WBITS + kGzip) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&state_); }

  std::size_t read(std::span<char> to) override {
    std::size_t got = 0;
    while (got < to.size()) {
      const bool all_read = state_.avail_in == 0 && !fill();
      if (all_read && ended_) break;
      if (ended_) begin_next();
      const auto room =
          static_cast<uInt>(std::min<std::size_t>(to.size() - got, std::numeric_limits<uInt>::max()));
      state_.next_out = reinterpret_cast<Bytef*>(to.data() + got);
      state_.avail_out = room;
      const int status = inflate(&state_, Z_NO_FLUSH);
      const std::size_t more = room - state_.avail_out;
      got += more;
      ended_ = status == Z_STREAM_END;
      if (status != Z_OK && !ended_ && status != Z_BUF_ERROR)
        refuse(file_->path(),
               fmt::format("is damaged gzip: {}", state_.msg == nullptr ? "no reason given" : state_.msg));
      if (all_read && !ended_ && more == 0) refuse_cut_off();
    }
    return got;
  }
  std::int64_t consumed() const override { return file_->consumed(); }

 private:
  bool fill() {
    const std::size_t got = file_->read(block_);
    state_.next_in = reinterpret_cast<Bytef*>(block_.data());
    state_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }
  [[noreturn]] void refuse_cut_off() const {
    refuse(file_->path(), "ends in the middle of its gzip data: it is cut off");
  }
  void begin_next() {
    inflateReset(&state_);
    ended_ = false;
  }

  std::unique_ptr<PlainStream> file_;
  std::vector<char> block_;
  z_stream state_ = {};
  bool ended_ = false;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<PlainStream> file)
      : file_(std::move(file)), block_(ZSTD_DStreamInSize()), state_(ZSTD_createDStream()) {
    if (!state_) throw std::bad_alloc();
  }
  std::size_t read(std::span<char> to) override {
    ZSTD_outBuffer out = {.dst = to.data(), .size = to.size(), .pos = 0};
    while (out.pos < out.size) {
      const bool all_read = in_.pos == in_.size && !fill();
      if (all_read && ended_) break;
      const std::size_t before = out.pos, status = ZSTD_decompressStream(state_.get(), &out, &in_);
      if (ZSTD_isError(status) != 0)
        refuse(file_->path(), fmt::format("is damaged zstd: {}", ZSTD_getErrorName(status)));
      ended_ = status == 0;
      if (all_read && !ended_ && out.pos == before)
        refuse(file_->path(), "ends in the middle of its zstd data: it is cut off");
    }
    return out.pos;
  }
  std::int64_t consumed() const override { return file_->consumed(); }

 private:
  bool fill() {
    const std::size_t got = file_->read(block_);
    in_ = {.src = block_.data(), .size = got, .pos = 0};
    return got > 0;
  }

  struct Free {
    void operator()(ZSTD_DStream* state) const { ZSTD_freeDStream(state); }
  };
  std::unique_ptr<PlainStream> file_;
  std::vector<char> block_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  ZSTD_inBuffer in_ = {.src = nullptr, .size = 0, .pos = 0};
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const std::string& path) {
  auto file = std::make_unique<PlainStream>(path);
  char first[4] = {};
  const std::string_view begin(first, file->read(first));
  file->rewind();
  if (begin.starts_with("\x1f\x8b")) return std::make_unique<GzipStream>(std::move(file));
  if (begin == "\x28\xb5\x2f\xfd") return std::make_unique<ZstdStream>(std::move(file));
  return file;
}

}  // namespace tessera::cli
