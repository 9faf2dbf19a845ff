#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/parameter_layout.h"

// Matrices of experts in MXFP4 (Open Compute Project, "Microscaling Formats (MX) Specification",
// version 1.0): blocks of 32 numbers of 4 bits, each block with a power of two as its scale.
namespace terrace {

// The names under which the two parts of such a tensor are stored, behind the tensor's own name.
inline constexpr const char* kMxfp4Blocks = "_blocks";
inline constexpr const char* kMxfp4Scales = "_scales";

// A part of a tensor in the files.
struct Mxfp4Part {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};
// A tensor of the shape [E,A,B], stored in two parts. The blocks are U8 [E,B,A/32,16]: a byte has
// two numbers, the first in its low half. The scales are U8 [E,B,A/32]: exponents of two, plus 127.
struct Mxfp4Tensor {
  Mxfp4Part blocks, scales;
};

// Throws ConfigError if the parts do not have the types and shapes that the parameter asks for.
// `directory` is for the message.
void check_mxfp4(const std::string& directory, const Mxfp4Tensor& stored,
                 const ParameterTensor& tensor);

// Reads elements [begin, begin + out.size()) of a parameter, [rows, columns] row by row, whose
// StoredElements are columns of the stored matrices. The numbers are exact; all of them are numbers
// of bf16, too. Those above the largest number of bf16 are infinite. Throws IoError.
void read_mxfp4(const Mxfp4Tensor& stored, const ParameterTensor& tensor, std::int64_t begin,
                std::span<float> out);

}  // namespace terrace
