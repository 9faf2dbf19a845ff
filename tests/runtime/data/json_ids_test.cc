#include "runtime/data/json_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/data/document_ids.h"

// JSON lines with ids, and the keys that other programs write beside them; and the tokens at both
// ends of documents that come as text.
namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JsonDocument ids_of_line(const std::string& line) {
  return parse_json_document(line, "data.jsonl:7", 300);
}

std::string refusal_of_line(const std::string& line) {
  try {
    ids_of_line(line);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonIds, PaddingAtBothEndsIsLeftOut) {
  const JsonDocument both = ids_of_line(
      R"({"input_ids": [0, 0, 5, 6, 7, 0], "attention_mask": [0, 0, 1, 1, 1, 0],
          "loss_mask": [0, 0, 0, 1, 1, 0]})");
  EXPECT_THAT(both.ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(both.mask, ElementsAre(0, 1, 1));
  EXPECT_THAT(ids_of_line(R"({"input_ids": [5, 6], "attention_mask": [1, true]})").ids,
              ElementsAre(5, 6));
  EXPECT_THAT(ids_of_line(R"({"input_ids": [5, 6], "attention_mask": [0, 0]})").ids, IsEmpty());
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]})"),
              HasSubstr("data.jsonl:7: key \"attention_mask\" has 0 at 1, between ids"));
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5, 6, 7], "attention_mask": [1, 1, 2]})"),
              HasSubstr("key \"attention_mask\" has 2 at 2"));
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5, 6, 7], "attention_mask": [1, 1]})"),
              HasSubstr("key \"attention_mask\" has 2 numbers, but \"input_ids\" has 3"));
}

TEST(JsonIds, LabelsAreTheIdsOrSayWhatIsNotTrained) {
  EXPECT_THAT(ids_of_line(R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})").mask,
              ElementsAre(0, 1, 1));
  EXPECT_THAT(ids_of_line(R"({"input_ids": [5, 6], "labels": [5, 6]})").mask, IsEmpty());
  EXPECT_THAT(ids_of_line(R"({"input_ids": [0, 6, 7], "labels": [-100, -100, 7],
                              "attention_mask": [0, 1, 1]})")
                  .mask,
              ElementsAre(0, 1));
  const std::string moved = refusal_of_line(R"({"input_ids": [5, 6, 7], "labels": [6, 7, -100]})");
  EXPECT_THAT(moved, HasSubstr("key \"labels\" has 6 at 0, where \"input_ids\" has 5"));
  EXPECT_THAT(moved, HasSubstr("moved back"));
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5, 6], "labels": [5]})"),
              HasSubstr("key \"labels\" has 1 numbers"));
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5, 6], "labels": [5, -101]})"),
              HasSubstr("key \"labels\" has -101 at 1"));
}

TEST(JsonIds, AnIdCountsIfItCountsInEveryMask) {
  EXPECT_THAT(ids_of_line(R"({"input_ids": [5, 6, 7, 8], "completion_mask": [0, 1, 1, 1],
                              "assistant_masks": [1, 1, 0, 1], "labels": [5, 6, 7, -100]})")
                  .mask,
              ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(refusal_of_line(R"({"input_ids": [5], "completion_mask": [7]})"),
              HasSubstr("key \"completion_mask\" has 7 at 0"));
}

TEST(JsonIds, SequencesInARowAreCut) {
  const auto ends = [](const std::string& keys) {
    return ids_of_line(R"({"input_ids": [5, 6, 7, 8, 9], )" + keys + "}").ends;
  };
  EXPECT_THAT(ends(R"("position_ids": [0, 1, 0, 1, 2])"), ElementsAre(2, 5));
  EXPECT_THAT(ends(R"("position_ids": [0, 1, 2, 3, 4])"), ElementsAre(5));
  EXPECT_THAT(ends(R"("seq_lengths": [1, 4])"), ElementsAre(1, 5));
  EXPECT_THAT(ends(R"("seq_lens": [2, 3], "position_ids": [0, 1, 0, 1, 2])"), ElementsAre(2, 5));
  EXPECT_THAT(ends(R"("attention_mask": [0, 1, 1, 1, 0], "position_ids": [1, 0, 0, 1, 1])"),
              ElementsAre(1, 3));
  EXPECT_THAT(ends(R"("attention_mask": [1, 1, 1, 0, 0], "seq_lengths": [1, 2])"),
              ElementsAre(1, 3));
}

TEST(JsonIds, SequencesThatAreNotUnderstoodAreRefusedByTheirKey) {
  const auto refusal = [](const std::string& keys) {
    return refusal_of_line(R"({"input_ids": [5, 6, 7], )" + keys + "}");
  };
  EXPECT_THAT(refusal(R"("position_ids": [3, 4, 5])"),
              HasSubstr("key \"position_ids\" begins with 3"));
  EXPECT_THAT(refusal(R"("position_ids": [0, 1, 3])"),
              HasSubstr("key \"position_ids\" has 3 at 2, after 1"));
  EXPECT_THAT(refusal(R"("seq_lengths": [1, 1])"),
              HasSubstr("key \"seq_lengths\" adds up to 2, but there are 3 ids"));
  EXPECT_THAT(refusal(R"("seq_lens": [3, 0])"), HasSubstr("key \"seq_lens\" has 0 at 1"));
  EXPECT_THAT(refusal(R"("seq_lens": [1, 2], "position_ids": [0, 1, 0])"),
              HasSubstr("key \"seq_lens\" tells other sequences"));
  EXPECT_THAT(refusal(R"("cu_seqlens": [0, 3])"), HasSubstr("key \"cu_seqlens\" is not read"));
}

// A tokenizer whose ids are bytes, for which '<' begins a document and '>' ends one.
class MarkedTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return 256; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    bytes_->encode(text, ids);
  }
  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    bytes_->encode_with_ends(text, ids, ends);
  }
  std::vector<std::string> special_texts() const override { return {}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return bytes_->decode(ids);
  }
  std::optional<std::int32_t> begin_token() const override { return '<'; }
  std::optional<std::int32_t> end_token() const override { return is_one_mark ? '<' : '>'; }

  bool is_one_mark = false;  // '<' also ends a document, as GPT-2's only mark does

 private:
  std::unique_ptr<Tokenizer> bytes_ = make_bytes_tokenizer();
};

class DocumentMarks : public testing::Test {
 protected:
  // Returns the documents of lines, with '|' behind each.
  std::string documents(const std::vector<std::string>& lines) {
    DocumentIds documents;
    for (const std::string& line : lines) {
      add_document(ids_of_line(line), {.tokenizer = tokenizer_, .appends_end = appends_end_},
                   "line", documents);
    }
    std::string text;
    std::size_t at = 0;
    for (const std::size_t end : documents.ends) {
      for (; at < end; ++at) text += static_cast<char>(documents.ids[at]);
      text += '|';
    }
    EXPECT_EQ(at, documents.ids.size());
    mask_ = documents.mask;
    return text;
  }

  MarkedTokenizer tokenizer_;
  bool appends_end_ = true;
  std::vector<std::uint8_t> mask_;
};

TEST_F(DocumentMarks, AreNotDoubled) {
  EXPECT_EQ(documents({R"({"text": "a"})", R"({"text": "<a"})", R"({"text": "a>"})",
                       R"({"text": "<a>"})", R"({"text": "<<a>>"})", R"({"text": ""})"}),
            "<a>|<a>|<a>|<a>|<<a>>|<>|");
  EXPECT_EQ(documents({R"({"prompt": "<p", "completion": "c>"})"}), "<pc>|");
  EXPECT_THAT(mask_, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(documents({R"({"prompt": "p", "completion": ""})"}), "<p>|");
  EXPECT_THAT(mask_, ElementsAre(0, 0, 1));
  appends_end_ = false;
  EXPECT_EQ(documents({R"({"text": "a"})", R"({"text": "a>"})"}), "<a|<a>|");
  appends_end_ = true;
  tokenizer_.is_one_mark = true;
  EXPECT_EQ(documents({R"({"text": ""})", R"({"text": "a"})", R"({"text": "<a<"})"}),
            "<<|<a<|<a<|");
}

TEST_F(DocumentMarks, AreNotAddedToIds) {
  EXPECT_EQ(
      documents({R"({"input_ids": [65, 66, 67], "seq_lengths": [1, 2]})", R"({"text": "a"})"}),
      "A|BC|<a>|");
}

}  // namespace
}  // namespace terrace
