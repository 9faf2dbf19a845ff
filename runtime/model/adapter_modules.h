#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"

// The modules that train whole beside an adapter, as PEFT's modules_to_save names them.
namespace terrace {

// Returns the names of all stored tensors of a model, without an adapter's.
std::vector<std::string> stored_names_of(const ModelConfig& config);

// Returns the names of the stored tensors that AdapterOptions::whole_modules covers.
std::set<std::string> whole_tensors(const ModelConfig& config);

// Returns the list for whole_modules that covers these stored tensors and no others, sorted: the
// last part of a module's name where all modules whose names end so are meant, else the whole name.
// A tied head belongs to the list if the embedding does. The tensors must be all tensors of their
// modules.
std::vector<std::string> modules_of(const ModelConfig& config,
                                    const std::set<std::string>& tensors);

// Returns the list for whole_modules that covers the tensors that the patterns of --trainable
// match. Throws ConfigError for a pattern that matches no tensor, and where only some of a module's
// tensors match.
std::vector<std::string> modules_that_match(const ModelConfig& config,
                                            const std::vector<std::string>& patterns,
                                            OptionNames name_of_option = field_of_option);

// Returns whether the model's head is its embedding, which trains whole.
bool has_whole_tied_head(const ModelConfig& config);
// Return the stored names of the embedding, and of the head's weight: the name that it would have
// if it were not tied.
std::string stored_embedding_name(const ModelConfig& config);
std::string stored_head_name(const ModelConfig& config);

}  // namespace terrace
