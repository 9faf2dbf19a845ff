// SGD with momentum, as torch.optim.SGD computes it with a dampening of 0 and without Nesterov: the
// decay is a part of the gradient. Written as correctly rounded fp32 operations in this order, the
// same on every processor (fma only where said), where g is the gradient times gradient_scale:
//   g  = fma(weight_decay, p, g)
//   b  = fma(momentum, b, g)
//   p  = fma(-learning_rate, b, p)
// The first step's b is g, since b begins with 0. Denormals are kept.
struct Sgd {
  static constexpr std::string_view kName = "sgd";
  static constexpr std::array<Slot, 1> kSlots = {{{"momentum_buffer"}}};
  static constexpr std::array<Hyperparameter, 1> kHyperparameters = {{
      {"sgd-momentum", "sgd: share of the last step's direction that is kept (0.9)", 0.9},
  }};

  static std::array<float, kMostRuleScalars> step_scalars(const RuleOptions& /*options*/,
                                                          std::int64_t /*updates*/,
                                                          double /*learning_rate*/) {
    return {};
  }

  static RuleConstants constants(const RuleOptions& options) { return fp32_values(options); }

  struct Factors {
    Number momentum;
    Number minus_rate;  // -learning_rate
  };

  TERRACE_RULE_FUNCTION static Factors factors(const RuleConstants& constants,
                                               const StepScalars& scalars) {
    return {.momentum = number(constants[0]), .minus_rate = number(-scalars.learning_rate)};
  }

  TERRACE_RULE_FUNCTION static float decay(const StepScalars& /*scalars*/, float weight_decay) {
    return weight_decay;
  }

  TERRACE_RULE_FUNCTION static void update(const Factors& f, Number decay, Number g,
                                           Element<1>& element) {
    auto& [p, slots] = element;
    auto& [b] = slots;
    g = fused(decay, p, g);
    b = fused(f.momentum, b, g);
    p = fused(f.minus_rate, b, p);
  }
};
