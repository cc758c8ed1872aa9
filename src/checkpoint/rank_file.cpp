#include "src/checkpoint/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "src/checkpoint/buffer_checksum.h"
#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

namespace {

Header with_buffers(Header header, const Layout& layout, const std::vector<PersistentBuffer>& stored) {
  for (const PersistentBuffer& buffer : stored) {
    header.buffers.push_back({.unit = layout.units().at(layout.flat(buffer.flat).unit).name,
                              .flat = buffer.flat,
                              .state = buffer.state,
                              .whole = buffer.spread == kWhole && layout.shards() > 1,
                              .bytes = buffer.bytes});
    if (layout.tensor() > 1)
      header.buffers.back().blocks.resize(static_cast<std::size_t>(blocks_in(buffer.bytes)));
  }
  encode(header);  // which says where each lies: checksums are of one length
  return header;
}

// Calls use(offset, bytes) for pieces of so many bytes in all, in order. In a file, from `place` on, all but
// the first and the last are whole blocks.
template <class Use>
void each_piece(std::int64_t bytes, std::int64_t place, const Use& use) {
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t piece = std::min(bytes - done, Engine::kPieceBytes - (place + done) % kBlockBytes);
    use(done, static_cast<std::size_t>(piece));
    done += piece;
  }
}

}  // namespace

RankFile::RankFile(const std::filesystem::path& path, Engine& engine, Header header,
                   const std::vector<PersistentBuffer>& stored)
    : engine_(engine),
      header_(with_buffers(std::move(header), engine.layout(), stored)),
      file_(path, header_.file_bytes) {
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const PersistentBuffer& buffer = stored[i];
    if (engine.persistent_space(buffer.flat, buffer.state) != Space::disk)
      sources_.push_back({i, buffer, engine.persistent(buffer.flat, buffer.state)});
    else
      write_buffer(header_.buffers[i], [&](std::int64_t offset, std::size_t bytes) {
        piece_.resize(bytes);
        engine.read_persistent(buffer.flat, buffer.state, offset, piece_);
        return std::span<const std::byte>(piece_);
      });
  }
  try {
    thread_ = device::Thread("checkpoint", {}, [this] { run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("rank {}: a thread to write '{}' cannot be started: {}", header_.rank,
                                       path.string(), error.what()));
  }
}

RankFile::~RankFile() {
  {
    const std::lock_guard lock(mutex_);
    reading_ends_ = writing_ends_ = true;
  }
  changed_.notify();
  thread_.join();
}

// `read(offset, bytes)` gives so many bytes of the buffer, which stay until the next.
template <class Read>
void RankFile::write_buffer(StoredBuffer& buffer, const Read& read) {
  BufferChecksum checksum(buffer);
  each_piece(buffer.bytes, buffer.offset, [&](std::int64_t offset, std::size_t bytes) {
    const std::span<const std::byte> piece = read(offset, bytes);
    checksum.add(piece);
    file_.write_at(buffer.offset + offset, piece);
  });
  checksum.finish();
}

void RankFile::run() noexcept try {
  write_sources();
  reach(Stage::read);
  // The disk has nothing else to do while the header is awaited.
  if (!ends()) file_.sync();
  if (!told_contents()) return;
  write_header();
  reach(Stage::done);
} catch (...) {
  reach(Stage::failed, std::current_exception());
}

void RankFile::write_sources() {
  for (const Source& source : sources_)
    write_buffer(header_.buffers[source.index], [&](std::int64_t offset, std::size_t bytes) {
      check_reading();
      if (!source.there.empty()) return source.there.subspan(static_cast<std::size_t>(offset), bytes);
      piece_.resize(bytes);
      engine_.read_beside(source.buffer.flat, source.buffer.state, offset, piece_);
      return std::span<const std::byte>(piece_);
    });
}

void RankFile::check_reading() {
  const std::lock_guard lock(mutex_);
  if (reading_ends_)
    throw UsageError("the engine was destroyed before its checkpoint had been read; finish() that first");
}

bool RankFile::told_contents() {
  wait([&] { return complete_ || writing_ends_; });
  const std::lock_guard lock(mutex_);
  return complete_ && !writing_ends_;
}

bool RankFile::ends() {
  const std::lock_guard lock(mutex_);
  return writing_ends_;
}

void RankFile::write_header() {
  file_.write_at(0, encode(header_));
  file_.finish();
}

void RankFile::reach(Stage stage, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    stage_ = stage;
    error_ = std::move(error);
  }
  changed_.notify();
}

// It is this rank's own disk that is waited for, which no peer's deadline bounds.
template <class Ready>
void RankFile::wait(const Ready& ready) {
  changed_.wait(device::WaitPolicy::choose(Waiting::block, 0), device::kForever, [&] {
    const std::lock_guard lock(mutex_);
    return ready();
  });
}

void RankFile::wait_for(bool (*enough)(Stage)) {
  wait([&] { return enough(stage_); });
  const std::lock_guard lock(mutex_);
  if (stage_ == Stage::failed) std::rethrow_exception(error_);
}

void RankFile::wait_read() {
  wait_for([](Stage stage) { return stage != Stage::reading; });
}

void RankFile::stop_reading() {
  {
    const std::lock_guard lock(mutex_);
    reading_ends_ = true;
  }
  wait([&] { return stage_ != Stage::reading; });
}

std::uint64_t RankFile::checksum() const {
  std::vector<std::uint64_t> checksums;
  for (const StoredBuffer& buffer : header_.buffers) checksums.push_back(buffer.checksum);
  return checksum_of(std::as_bytes(std::span(checksums)));
}

void RankFile::complete(std::uint64_t contents) {
  {
    const std::lock_guard lock(mutex_);
    header_.contents = contents;
    complete_ = true;
  }
  changed_.notify();
}

bool RankFile::done() const {
  const std::lock_guard lock(mutex_);
  return stage_ == Stage::done || stage_ == Stage::failed;
}

void RankFile::finish() {
  wait_for([](Stage stage) { return stage == Stage::done || stage == Stage::failed; });
}

}  // namespace tessera::checkpoint
