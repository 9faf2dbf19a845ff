#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/load_tokenizer.h"

// Turns texts into ids, for the comparisons in Python:
//     tokenizer_ids TOKENIZER TEXTS IDS ROUNDS
// TEXTS has the size of each text as a u64, followed by its bytes. IDS gets the number of each
// text's ids as a u64, followed by the ids as u32. Prints the processor seconds of the fastest
// round.
namespace terrace {
namespace {

std::vector<std::string_view> texts_of(std::string_view content) {
  std::vector<std::string_view> texts;
  for (std::size_t at = 0; at < content.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, content.data() + at, sizeof size);
    texts.push_back(content.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return texts;
}

double processor_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void write_ids(std::ofstream& out, const std::vector<std::int32_t>& ids) {
  const std::uint64_t count = ids.size();
  out.write(reinterpret_cast<const char*>(&count), sizeof count);
  out.write(reinterpret_cast<const char*>(ids.data()),
            static_cast<std::streamsize>(ids.size() * sizeof(std::int32_t)));
}

int run(char** argv) {
  SilentLog log;
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(argv[1], log);
  std::ifstream in(argv[2], std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::vector<std::string_view> texts = texts_of(content);
  double fastest = 1e9;
  std::vector<std::int32_t> ids;
  for (int round = std::atoi(argv[4]); round > 0; --round) {
    const double begin = processor_seconds();
    for (const std::string_view text : texts) {
      ids.clear();
      tokenizer->encode(text, ids);
    }
    fastest = std::min(fastest, processor_seconds() - begin);
  }
  std::ofstream out(argv[3], std::ios::binary);
  for (const std::string_view text : texts) {
    ids.clear();
    tokenizer->encode(text, ids);
    write_ids(out, ids);
  }
  fmt::print("{:.6f}\n", fastest);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    return terrace::run(argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
