#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::report {

// The lists of numbers that rows have under one key, added up place by place. With the ranks of a
// run, the length of its lists changes: only the rows from the last change on are added.
struct ListSums {
  std::vector<double> sums;
  std::size_t first_row = 0;
};

// The numbers of one row of metrics.jsonl.
struct MetricsRow {
  std::map<std::string, double> values;
  std::map<std::string, std::vector<double>> lists;
};

// The rows of metrics.jsonl by column. Keys inside an object are joined by "/": "busy_s/compute".
// A value that a row lacks, or that is null, is NaN.
class MetricsTable {
 public:
  std::size_t rows() const { return rows_; }
  bool has(std::string_view column) const { return columns_.contains(column); }
  // Returns an empty span where no row has the column.
  std::span<const double> column(std::string_view name) const;
  // Returns NaN where there is none.
  double last(std::string_view name) const;
  // Returns the names of the columns that begin with the prefix, in alphabetical order.
  std::vector<std::string> columns_of(std::string_view prefix) const;

  // Returns no sums where no row has lists of this name.
  ListSums list_sums(std::string_view name) const;

  // Adds a row, which may have the same columns and lists as before or others.
  void add(const MetricsRow& row);

 private:
  std::map<std::string, std::vector<double>, std::less<>> columns_;
  std::map<std::string, ListSums, std::less<>> lists_;
  std::size_t rows_ = 0;
};

// Reads a file of rows. Lines that are no rows are left out, and `remarks` gets sentences about
// them, in plain text. It also gets a sentence if the file is missing or has no rows.
MetricsTable read_metrics(const std::string& path, std::vector<std::string>& remarks);

}  // namespace terrace::report
