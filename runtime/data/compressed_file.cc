#include "runtime/data/compressed_file.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

constexpr std::size_t kInputBytes = std::size_t{1} << 16;

// The file as it is, in pieces.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path) : path_(path), file_(path_), buffer_(kInputBytes) {}

  // Returns the unused rest of the piece, or the next piece if none is left. Empty at the end.
  std::span<std::byte> rest() {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = file_.read_next(buffer_);
      read_bytes_ += end_;
    }
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }
  void use(std::size_t bytes) { begin_ += bytes; }
  std::uint64_t read_bytes() const { return read_bytes_; }

  CorruptData damage(std::string_view what) const {
    return {fmt::format("{}: {}", path_, what), "fetch or compress the file again"};
  }

 private:
  std::string path_;
  ReadableFile file_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t read_bytes_ = 0;
};

class PlainBytes final : public ByteStream {
 public:
  explicit PlainBytes(std::unique_ptr<FileBytes> file) : file_(std::move(file)) {}

  std::size_t read(std::span<std::byte> out) override {
    const std::span<std::byte> rest = file_->rest();
    const std::size_t count = std::min(rest.size(), out.size());
    std::ranges::copy(rest.first(count), out.begin());
    file_->use(count);
    return count;
  }
  std::uint64_t file_bytes() const override { return file_->read_bytes(); }

 private:
  std::unique_ptr<FileBytes> file_;
};

class GzipBytes final : public ByteStream {
 public:
  explicit GzipBytes(std::unique_ptr<FileBytes> file) : file_(std::move(file)) {
    constexpr int kWithGzipHeader = 16 + MAX_WBITS;
    TERRACE_CHECK_EQ(inflateInit2(&state_, kWithGzipHeader), Z_OK);
  }
  ~GzipBytes() override { inflateEnd(&state_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  std::size_t read(std::span<std::byte> out) override {
    for (;;) {
      const std::span<std::byte> in = file_->rest();
      if (in.empty() && is_between_members_) return 0;
      if (in.empty()) throw file_->damage("the gzip data ends too early");
      is_between_members_ = false;
      const std::size_t made = inflate_some(in, out);
      if (made > 0) return made;
    }
  }
  std::uint64_t file_bytes() const override { return file_->read_bytes(); }

 private:
  std::size_t inflate_some(std::span<std::byte> in, std::span<std::byte> out) {
    state_.next_in = reinterpret_cast<Bytef*>(in.data());
    state_.avail_in = static_cast<uInt>(in.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    state_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&state_, Z_NO_FLUSH);
    file_->use(in.size() - state_.avail_in);
    if (result == Z_STREAM_END) {
      is_between_members_ = true;
      TERRACE_CHECK_EQ(inflateReset(&state_), Z_OK);
    } else if (result != Z_OK) {
      throw file_->damage("the gzip data is damaged");
    }
    return out.size() - state_.avail_out;
  }

  std::unique_ptr<FileBytes> file_;
  z_stream state_ = {};
  bool is_between_members_ = false;
};

class ZstdBytes final : public ByteStream {
 public:
  explicit ZstdBytes(std::unique_ptr<FileBytes> file)
      : file_(std::move(file)), state_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    TERRACE_CHECK(state_ != nullptr);
  }

  std::size_t read(std::span<std::byte> out) override {
    for (;;) {
      const std::span<std::byte> in = file_->rest();
      if (in.empty() && is_between_frames_) return 0;
      ZSTD_inBuffer input = {in.data(), in.size(), 0};
      ZSTD_outBuffer output = {out.data(), out.size(), 0};
      const std::size_t result = ZSTD_decompressStream(state_.get(), &output, &input);
      if (ZSTD_isError(result) != 0) throw file_->damage("the Zstandard data is damaged");
      file_->use(input.pos);
      is_between_frames_ = result == 0;
      if (output.pos > 0) return output.pos;
      if (in.empty() && result != 0) throw file_->damage("the Zstandard data ends too early");
    }
  }
  std::uint64_t file_bytes() const override { return file_->read_bytes(); }

 private:
  std::unique_ptr<FileBytes> file_;
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> state_;
  bool is_between_frames_ = false;
};

bool starts_with(std::span<const std::byte> bytes, std::span<const unsigned char> magic) {
  return bytes.size() >= magic.size() &&
         std::ranges::equal(bytes.first(magic.size()), std::as_bytes(magic));
}

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const std::string& path) {
  constexpr unsigned char kGzip[] = {0x1f, 0x8b};                   // RFC 1952
  constexpr unsigned char kZstandard[] = {0x28, 0xb5, 0x2f, 0xfd};  // RFC 8878
  auto file = std::make_unique<FileBytes>(path);
  const std::span<std::byte> front = file->rest();
  if (starts_with(front, kGzip)) return std::make_unique<GzipBytes>(std::move(file));
  if (starts_with(front, kZstandard)) return std::make_unique<ZstdBytes>(std::move(file));
  return std::make_unique<PlainBytes>(std::move(file));
}

}  // namespace terrace
