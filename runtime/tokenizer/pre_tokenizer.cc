#include "runtime/tokenizer/pre_tokenizer.h"

#include <array>
#include <utility>
#include <vector>

#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

// Returns the part [begin, end) of the piece, which is `text` by now.
TextPiece part_of(const TextPiece& piece, std::string_view text, std::size_t begin,
                  std::size_t end) {
  return {text.substr(begin, end - begin), piece.begins_text && begin == 0};
}

void take_one(const TextPiece& piece, TakePieces take) { take({&piece, 1}); }

// Gathers pieces, so that they are taken several at a time.
class PieceBatch {
 public:
  explicit PieceBatch(TakePieces take) : take_(take) {}

  void add(const TextPiece& piece) {
    pieces_[count_++] = piece;
    if (count_ == pieces_.size()) flush();
  }
  void flush() {
    if (count_ > 0) take_({pieces_.data(), count_});
    count_ = 0;
  }

 private:
  TakePieces take_;
  std::array<TextPiece, kPiecesOfBatch> pieces_;
  std::size_t count_ = 0;
};

class LiteralFinder final : public PatternFinder {
 public:
  explicit LiteralFinder(std::string literal) : literal_(std::move(literal)) {}

  void find_all(std::string_view text, FunctionRef<void(Span)> take) const override {
    for (std::size_t found = text.find(literal_); found != std::string_view::npos;
         found = text.find(literal_, found + literal_.size())) {
      take({found, found + literal_.size()});
    }
  }

 private:
  std::string literal_;
};

class PatternSplit final : public PreTokenizer {
 public:
  PatternSplit(std::unique_ptr<PatternFinder> pattern, SplitBehavior behavior, bool inverted)
      : pattern_(std::move(pattern)), behavior_(behavior), inverted_(inverted) {}

  void cut(const TextPiece& piece, TakePieces take) const override {
    PieceBatch batch(take);
    for (const PatternFinder::Span& span : join(parts_of(piece.text))) {
      if (span.begin == span.end) continue;
      batch.add(part_of(piece, piece.text, span.begin, span.end));
    }
    batch.flush();
  }

 private:
  struct Part {
    PatternFinder::Span span;
    bool is_match = false;
  };

  std::vector<Part> parts_of(std::string_view text) const {
    std::vector<Part> parts;
    std::size_t done = 0;
    pattern_->find_all(text, [&](PatternFinder::Span match) {
      if (done < match.begin) parts.push_back({{done, match.begin}, inverted_});
      parts.push_back({match, !inverted_});
      done = match.end;
    });
    if (done < text.size()) parts.push_back({{done, text.size()}, inverted_});
    return parts;
  }

  std::vector<PatternFinder::Span> join(const std::vector<Part>& parts) const {
    if (behavior_ == SplitBehavior::kMergedWithNext) return join_with_next(parts);
    std::vector<PatternFinder::Span> spans;
    bool after_match = false;
    for (const Part& part : parts) {
      if (behavior_ == SplitBehavior::kRemoved && part.is_match) continue;
      const bool joins = behavior_ == SplitBehavior::kMergedWithPrevious
                             ? part.is_match && !after_match
                         : behavior_ == SplitBehavior::kContiguous ? part.is_match == after_match
                                                                   : false;
      if (joins && !spans.empty()) {
        spans.back().end = part.span.end;
      } else {
        spans.push_back(part.span);
      }
      after_match = part.is_match;
    }
    return spans;
  }

  // Does the same as join(), but joins matches with the gap after them, from right to left.
  static std::vector<PatternFinder::Span> join_with_next(const std::vector<Part>& parts) {
    std::vector<PatternFinder::Span> spans;
    bool before_match = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->is_match && !before_match && !spans.empty()) {
        spans.back().begin = part->span.begin;
      } else {
        spans.push_back(part->span);
      }
      before_match = part->is_match;
    }
    return {spans.rbegin(), spans.rend()};
  }

  std::unique_ptr<PatternFinder> pattern_;
  SplitBehavior behavior_;
  bool inverted_;
};

class ScannerSplit final : public PreTokenizer {
 public:
  explicit ScannerSplit(std::unique_ptr<PieceScanner> scanner) : scanner_(std::move(scanner)) {}

  void cut(const TextPiece& piece, TakePieces take) const override {
    PieceBatch batch(take);
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t end = scanner_->end_of_piece(piece.text, at);
      batch.add(part_of(piece, piece.text, at, end));
      at = end;
    }
    batch.flush();
  }

 private:
  std::unique_ptr<PieceScanner> scanner_;
};

class DigitsSplit final : public PreTokenizer {
 public:
  DigitsSplit(const UnicodeClasses& classes, bool individual)
      : classes_(classes), individual_(individual) {}

  void cut(const TextPiece& piece, TakePieces take) const override {
    PieceBatch batch(take);
    std::size_t begin = 0;
    bool was_digit = false;
    const auto take_until = [&](std::size_t end) {
      if (begin == end) return;
      batch.add(part_of(piece, piece.text, begin, end));
      begin = end;
    };
    for (std::size_t at = 0; at < piece.text.size();) {
      const CodePoint point = code_point_at(piece.text, at);
      const bool is_digit = classes_.is(point.value, CodePointClass::kNumeric);
      if (is_digit != was_digit || (is_digit && individual_)) take_until(at);
      was_digit = is_digit;
      at += point.size_bytes;
    }
    take_until(piece.text.size());
    batch.flush();
  }

 private:
  const UnicodeClasses& classes_;
  bool individual_;
};

class SpacePrefix final : public PreTokenizer {
 public:
  void cut(const TextPiece& piece, TakePieces take) const override {
    if (piece.text.front() == ' ') return take_one(piece, take);
    std::string text(" ");
    text += piece.text;
    take_one({text, piece.begins_text}, take);
  }
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options) : options_(std::move(options)) {}

  void cut(const TextPiece& piece, TakePieces take) const override {
    const std::string text = replaced(piece);
    if (!options_.split) return take_one({text, piece.begins_text}, take);
    PieceBatch batch(take);
    // A mark begins a piece; one that follows another is a piece of its own.
    std::size_t begin = 0;
    for (std::size_t found = text.find(options_.replacement); found != std::string::npos;
         found = text.find(options_.replacement, found + options_.replacement.size())) {
      if (found > begin) batch.add(part_of(piece, text, begin, found));
      begin = found;
    }
    batch.add(part_of(piece, text, begin, text.size()));
    batch.flush();
  }

 private:
  std::string replaced(const TextPiece& piece) const {
    const bool starts = piece.text.front() == ' ' || piece.text.starts_with(options_.replacement);
    const bool prepends =
        !starts && (options_.prepend == PrependScheme::kAlways ||
                    (options_.prepend == PrependScheme::kFirst && piece.begins_text));
    std::string text;
    text.reserve(piece.text.size() + options_.replacement.size());
    if (prepends) text += options_.replacement;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += options_.replacement;
      } else {
        text += c;
      }
    }
    return text;
  }

  MetaspaceOptions options_;
};

}  // namespace

std::unique_ptr<PatternFinder> make_literal_finder(std::string literal) {
  return std::make_unique<LiteralFinder>(std::move(literal));
}

std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<PatternFinder> pattern,
                                         SplitBehavior behavior, bool inverted) {
  return std::make_unique<PatternSplit>(std::move(pattern), behavior, inverted);
}

std::unique_ptr<PreTokenizer> make_scanner_split(std::unique_ptr<PieceScanner> scanner) {
  return std::make_unique<ScannerSplit>(std::move(scanner));
}

std::unique_ptr<PreTokenizer> make_digits_split(const UnicodeClasses& classes, bool individual) {
  return std::make_unique<DigitsSplit>(classes, individual);
}

std::unique_ptr<PreTokenizer> make_space_prefix() { return std::make_unique<SpacePrefix>(); }

std::unique_ptr<PreTokenizer> make_metaspace(const MetaspaceOptions& options) {
  return std::make_unique<Metaspace>(options);
}

}  // namespace terrace
