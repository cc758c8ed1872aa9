#include "src/checkpoint/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

namespace {

Header with_buffers(Header header, const Layout& layout, const std::vector<PersistentBuffer>& stored) {
  for (const PersistentBuffer& buffer : stored)
    header.buffers.push_back(
        {.unit = layout.units().at(static_cast<std::size_t>(layout.flat(buffer.flat).unit)).name,
         .flat = buffer.flat,
         .state = buffer.state,
         .whole = buffer.whole,
         .bytes = buffer.bytes});
  encode(header);  // which says where each lies: checksums are of one length
  return header;
}

// Calls use(bytes) for a buffer's, by way of the host, in order.
template <class Use>
void fetch_pieces(Engine& engine, const PersistentBuffer& buffer, const Use& use) {
  std::vector<std::byte> piece;
  for (std::int64_t done = 0; done < buffer.bytes; done += Engine::kPieceBytes) {
    piece.resize(static_cast<std::size_t>(std::min(Engine::kPieceBytes, buffer.bytes - done)));
    engine.read_persistent(buffer.flat, buffer.state, done, piece);
    use(std::span<const std::byte>(piece));
  }
}

}  // namespace

RankFile::RankFile(const std::filesystem::path& path, Engine& engine, Header header,
                   const std::vector<PersistentBuffer>& stored)
    : header_(with_buffers(std::move(header), engine.layout(), stored)), file_(path, header_.file_bytes) {
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::span<const std::byte> there = engine.persistent(stored[i].flat, stored[i].state);
    if (!there.empty())
      sources_.push_back({i, there});
    else
      write_buffer(header_.buffers[i], [&](const auto& use) { fetch_pieces(engine, stored[i], use); });
  }
  try {
    thread_ = std::thread([this] { run(); });
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
  changed_.notify_all();
  thread_.join();
}

template <class EachPiece>
void RankFile::write_buffer(StoredBuffer& buffer, const EachPiece& each_piece) {
  Checksum checksum;
  std::int64_t offset = buffer.offset;
  each_piece([&](std::span<const std::byte> piece) {
    checksum.add(piece);
    file_.write_at(offset, piece);
    offset += static_cast<std::int64_t>(piece.size());
  });
  buffer.checksum = checksum.value();
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
  for (const Source& source : sources_) {
    StoredBuffer& buffer = header_.buffers[source.index];
    write_buffer(buffer, [&](const auto& use) {
      for (std::span<const std::byte> rest = source.bytes; !rest.empty();) {
        {
          const std::lock_guard lock(mutex_);
          if (reading_ends_)
            throw UsageError(
                "the engine was destroyed before its checkpoint had been read; finish() that first");
        }
        // All but the first and the last are whole blocks of the file.
        const std::int64_t offset =
            buffer.offset + static_cast<std::int64_t>(source.bytes.size() - rest.size());
        const auto most = static_cast<std::size_t>(Engine::kPieceBytes - offset % kBlockBytes);
        const auto piece = rest.first(std::min(rest.size(), most));
        use(piece);
        rest = rest.subspan(piece.size());
      }
    });
  }
}

bool RankFile::told_contents() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return complete_ || writing_ends_; });
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
  changed_.notify_all();
}

void RankFile::wait_for(bool (*enough)(Stage)) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return enough(stage_); });
  if (stage_ == Stage::failed) std::rethrow_exception(error_);
}

void RankFile::wait_read() {
  wait_for([](Stage stage) { return stage != Stage::reading; });
}

void RankFile::stop_reading() {
  std::unique_lock lock(mutex_);
  reading_ends_ = true;
  changed_.wait(lock, [&] { return stage_ != Stage::reading; });
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
  changed_.notify_all();
}

bool RankFile::done() const {
  const std::lock_guard lock(mutex_);
  return stage_ == Stage::done || stage_ == Stage::failed;
}

void RankFile::finish() {
  wait_for([](Stage stage) { return stage == Stage::done || stage == Stage::failed; });
}

}  // namespace tessera::checkpoint
