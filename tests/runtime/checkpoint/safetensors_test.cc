#include "runtime/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_of(std::string_view json, std::string_view data) {
  const std::uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(json).append(data);
}

// Returns a file made with the format's reference implementation; sha256
// 964b5a614438d3a4f183e1f40f5eaca3f115661991e898974044460353d04f06.
std::string golden() {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})";
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f\x00\xc0", 12);
  return file_of(json + "    ", data);
}

SafetensorsHeader golden_header() {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  header.tensors.resize(2);
  header.tensors[0].name = "w";
  header.tensors[0].type = SafetensorsType::kF32;
  header.tensors[0].shape = {2};
  header.tensors[1].name = "b";
  header.tensors[1].type = SafetensorsType::kBF16;
  header.tensors[1].shape = {2};
  return header;
}

std::string read_text(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                      std::uint64_t first, std::size_t size) {
  std::string out(size, '\0');
  file.read(tensor, first, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(Safetensors, WritesTheGoldenFile) {
  const TemporaryDirectory temporary;
  ASSERT_EQ(golden().size(), 164U);
  SafetensorsWriter writer(temporary.path("a.safetensors"), golden_header(), 8);
  writer.append(bytes_of(golden().substr(152, 5)));
  writer.append(bytes_of(golden().substr(157)));
  EXPECT_FALSE(temporary.has("a.safetensors"));
  writer.finish();
  EXPECT_EQ(temporary.read("a.safetensors"), golden());
}

TEST(Safetensors, ReadsTheGoldenFile) {
  const TemporaryDirectory temporary;
  const SafetensorsFile file(temporary.write("a", golden()));
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  ASSERT_EQ(file.header().tensors.size(), 2U);
  const SafetensorsTensor* w = file.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type, SafetensorsType::kF32);
  EXPECT_EQ(w->shape, std::vector<std::uint64_t>{2});
  EXPECT_EQ(w->elements(), 2U);
  EXPECT_EQ(read_text(file, *w, 0, 8), golden().substr(152, 8));
  EXPECT_EQ(read_text(file, *w, 3, 4), golden().substr(155, 4));
  EXPECT_EQ(read_text(file, *file.find("b"), 0, 4), golden().substr(160, 4));
  EXPECT_EQ(read_text(file, *file.find("b"), 4, 0), "");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, DataBeginsAtTheAlignmentAndNamesAreEscaped) {
  const TemporaryDirectory temporary;
  SafetensorsHeader header = golden_header();
  header.tensors[0].name = "quote \" and \\ and \xc3\xa9";
  header.tensors[1].shape = {};  // a scalar
  header.tensors.emplace_back();
  header.tensors[2].name = "empty";
  header.tensors[2].type = SafetensorsType::kU8;
  header.tensors[2].shape = {3, 0};
  SafetensorsWriter writer(temporary.path("a"), header);
  writer.append(bytes_of("12345678ab"));
  writer.finish();
  EXPECT_EQ(temporary.read("a").size(), 4096U + 10U);
  const SafetensorsFile file(temporary.path("a"));
  ASSERT_NE(file.find(header.tensors[0].name), nullptr);
  EXPECT_EQ(read_text(file, *file.find(header.tensors[0].name), 0, 8), "12345678");
  EXPECT_EQ(file.find("b")->elements(), 1U);
  EXPECT_EQ(read_text(file, *file.find("b"), 0, 2), "ab");
  EXPECT_EQ(file.find("empty")->size_bytes(), 0U);
}

TEST(Safetensors, TensorsMayBeListedInAnyOrderAndHeadersUnaligned) {
  const TemporaryDirectory temporary;
  const std::string json = R"({"b":{"dtype":"I8","shape":[3],"data_offsets":[2,5]},)"
                           R"("e":{"dtype":"I8","shape":[0],"data_offsets":[2,2]},)"
                           R"("a":{"shape":[2],"data_offsets":[0,2],"dtype":"U8"}})";
  const SafetensorsFile file(temporary.write("a", file_of(json, "xyabc")));
  EXPECT_EQ(file.header().tensors[0].name, "a");
  EXPECT_EQ(read_text(file, *file.find("b"), 1, 2), "bc");
  EXPECT_TRUE(SafetensorsFile(temporary.write("b", file_of("{}", ""))).header().tensors.empty());
}

TEST(Safetensors, TypesHaveTheirNamesAndSizes) {
  EXPECT_EQ(name_of(SafetensorsType::kBool), "BOOL");
  EXPECT_EQ(name_of(SafetensorsType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(name_of(SafetensorsType::kBF16), "BF16");
  EXPECT_EQ(name_of(SafetensorsType::kU64), "U64");
  EXPECT_EQ(bits_of(SafetensorsType::kF4), 4U);
  EXPECT_EQ(bits_of(SafetensorsType::kF6E3M2), 6U);
  EXPECT_EQ(bits_of(SafetensorsType::kF16), 16U);
  EXPECT_EQ(bits_of(SafetensorsType::kC64), 64U);
}

TEST(Safetensors, SmallTypesPackIntoBytes) {
  const std::string four = R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})";
  EXPECT_EQ(parse_safetensors_header(four, 2, "f").tensors[0].size_bytes(), 2U);
  const std::string odd = R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})";
  TERRACE_EXPECT_THROW_WITH(parse_safetensors_header(odd, 2, "f"), CorruptData, "whole bytes");
}

struct Malformed {
  const char* what;
  std::string json;
  std::uint64_t data_bytes;
  const char* named;
};

std::string one(const std::string& entry) { return R"({"t":)" + entry + "}"; }

class SafetensorsRefuses : public testing::TestWithParam<Malformed> {};

TEST_P(SafetensorsRefuses, NamingFileAndTensor) {
  const auto& [what, json, data_bytes, named] = GetParam();
  TERRACE_EXPECT_THROW_WITH(parse_safetensors_header(json, data_bytes, "f.safetensors"),
                            CorruptData, "f.safetensors");
  TERRACE_EXPECT_THROW_WITH(parse_safetensors_header(json, data_bytes, "f.safetensors"),
                            CorruptData, named);
}

const char* const kTwo =
    R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],)"
    R"("data_offsets":[%]}})";

std::string two(const std::string& offsets) {
  std::string json = kTwo;
  return json.replace(json.find('%'), 1, offsets);
}

INSTANTIATE_TEST_SUITE_P(
    Each, SafetensorsRefuses,
    testing::Values(
        Malformed{"empty", "", 0, "{"}, Malformed{"space_first", " {}", 0, "{"},
        Malformed{"list", "[]", 0, "{"}, Malformed{"cut", R"({"a":)", 0, "JSON"},
        Malformed{"utf8", "{\"\xff\":1}", 0, "JSON"},
        Malformed{"duplicate",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                  1, "twice"},
        Malformed{"duplicate_inside",
                  one(R"({"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]})"), 1,
                  "twice"},
        Malformed{"hole", two("3,5"), 5, "tensor b"},
        Malformed{"overlap", two("1,3"), 3, "tensor b"},
        Malformed{"same_place", two("0,2"), 2, "tensor b"},
        Malformed{"not_at_zero", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"), 2,
                  "tensor t"},
        Malformed{"data_longer", two("2,4"), 5, "5 bytes"},
        Malformed{"data_shorter", two("2,4"), 3, "3 bytes"},
        Malformed{"backwards", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), 0,
                  "tensor t"},
        Malformed{"size", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,7]})"), 7,
                  "tensor t"},
        Malformed{"overflow",
                  one(R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,0]})"),
                  0, "overflows"},
        Malformed{"overflow_bits",
                  one(R"({"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0]})"), 0,
                  "overflows"},
        Malformed{"type", one(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})"), 4, "F33"},
        Malformed{"type_number", one(R"({"dtype":3,"shape":[1],"data_offsets":[0,4]})"), 4,
                  "tensor t"},
        Malformed{"negative", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), 1, "-1"},
        Malformed{"fraction", one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), 1,
                  "tensor t"},
        Malformed{"huge_number",
                  one(R"({"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]})"), 1,
                  "tensor t"},
        Malformed{"no_shape", one(R"({"dtype":"U8","data_offsets":[0,1]})"), 1, "shape"},
        Malformed{"no_type", one(R"({"shape":[1],"data_offsets":[0,1]})"), 1, "dtype"},
        Malformed{"shape_text", one(R"({"dtype":"U8","shape":"1","data_offsets":[0,1]})"), 1,
                  "shape"},
        Malformed{"three_offsets", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})"), 1,
                  "data_offsets"},
        Malformed{"entry_list", one("[]"), 0, "tensor t"},
        Malformed{"metadata_list", R"({"__metadata__":[]})", 0, "__metadata__"},
        Malformed{"metadata_number", R"({"__metadata__":{"step":3}})", 0, "step"}),
    [](const auto& each) { return std::string(each.param.what); });

// Some writers leave null there, and the format's own reader accepts it.
TEST(Safetensors, NullIsNoMetadata) {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"__metadata__":null,"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "file");
  EXPECT_TRUE(header.metadata.empty());
  EXPECT_EQ(header.tensors.size(), 1U);
}

TEST(Safetensors, FilesThatAreCutAreRefused) {
  const TemporaryDirectory temporary;
  for (std::size_t size = 0; size < golden().size(); ++size) {
    const std::string path = temporary.write("a", golden().substr(0, size));
    TERRACE_EXPECT_THROW_WITH(SafetensorsFile{path}, CorruptData, path);
  }
  const std::string path = temporary.write("a", golden() + "x");
  TERRACE_EXPECT_THROW_WITH(SafetensorsFile{path}, CorruptData, path);
}

TEST(Safetensors, AnAbsurdHeaderLengthIsNotBelieved) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.write("a", std::string(8, '\xff') + "{}");
  TERRACE_EXPECT_THROW_WITH(SafetensorsFile{path}, CorruptData, "header");
  TERRACE_EXPECT_THROW_WITH(SafetensorsFile(temporary.path("no")), IoError, "no");
}

TEST(SafetensorsDeathTest, EveryDeclaredByteMustCome) {
  const TemporaryDirectory temporary;
  SafetensorsWriter writer(temporary.path("a"), golden_header());
  writer.append(bytes_of("0123456789a"));
  EXPECT_DEATH(writer.finish(), "end_");
  EXPECT_DEATH(writer.append(bytes_of("bc")), "end_");
}

}  // namespace
}  // namespace terrace
