#pragma once

#include <string>

#include "runtime/model/model_config.h"

namespace terrace {

// The model with q|k|v and gate|up stored as the rows of one tensor each, as phi3 stores them.
inline ModelConfig with_fused_names(ModelConfig config) {
  const auto fuse = [&config](ParameterKind kind, const std::string& stored) {
    config.names.at(static_cast<std::size_t>(kind)).stored = "model.layers.{}." + stored;
  };
  for (const ParameterKind kind :
       {ParameterKind::kQuery, ParameterKind::kKey, ParameterKind::kValue}) {
    fuse(kind, "self_attn.qkv_proj.weight");
  }
  for (const ParameterKind kind :
       {ParameterKind::kQueryBias, ParameterKind::kKeyBias, ParameterKind::kValueBias}) {
    fuse(kind, "self_attn.qkv_proj.bias");
  }
  for (const ParameterKind kind : {ParameterKind::kGate, ParameterKind::kUp}) {
    fuse(kind, "mlp.gate_up_proj.weight");
  }
  for (const ParameterKind kind : {ParameterKind::kGateBias, ParameterKind::kUpBias}) {
    fuse(kind, "mlp.gate_up_proj.bias");
  }
  return config;
}

}  // namespace terrace
