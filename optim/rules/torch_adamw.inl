// AdamW as torch.optim.AdamW computes it for one tensor after the other (foreach and fused off), in
// PyTorch 2.15: the same operations in the same order, with its scalars computed in fp64 and
// rounded once. Written as correctly rounded fp32 operations (fma only where said), where g is the
// gradient times gradient_scale:
//   p  = p * (1 - learning_rate * weight_decay)
//   m  = fma(1 - beta1, g - m, m)
//   v  = fma((1 - beta2) * g, g, v * beta2)
//   d  = sqrt(v) / sqrt(bias_correction_2) + epsilon
//   p  = p + (-(learning_rate / bias_correction_1) * m) / d
// PyTorch differs where its square roots are not correctly rounded (as in MKL on some processors),
// where beta1 is below 0.5, and with other tensors than fp32. Denormals are kept.
struct TorchAdamW {
  static constexpr std::string_view kName = "torch_adamw";
  static constexpr std::array<Slot, 2> kSlots = {{{"exp_avg"}, {"exp_avg_sq", false}}};
  static constexpr std::array<Hyperparameter, 3> kHyperparameters = {{
      {"adam-beta1", "Decay rate of the first moment (0.9)", 0.9},
      {"adam-beta2", "Decay rate of the second moment (0.999)", 0.999},
      {"adam-epsilon", "Added to the square root of the second moment (1e-8)", 1e-8,
       Hyperparameter::Range::kPositive},
  }};

  // -(learning_rate / bias_correction_1), sqrt(bias_correction_2), 1 - learning_rate * weight_decay
  static std::array<float, kMostRuleScalars> step_scalars(const RuleOptions& options,
                                                          std::int64_t updates,
                                                          double learning_rate) {
    const auto n = static_cast<double>(updates);
    return {static_cast<float>(-(learning_rate / (1 - std::pow(options.values[0], n)))),
            static_cast<float>(std::sqrt(1 - std::pow(options.values[1], n))),
            static_cast<float>(1 - learning_rate * options.weight_decay)};
  }

  static RuleConstants constants(const RuleOptions& options) {
    const auto& [beta1, beta2, epsilon, none] = options.values;
    return {static_cast<float>(1 - beta1), static_cast<float>(1 - beta2), static_cast<float>(beta2),
            static_cast<float>(epsilon)};
  }

  struct Factors {
    Number one_minus_beta1, one_minus_beta2;
    Number beta2;
    Number epsilon;
    Number minus_step_size;
    Number root_of_correction;
    Number one;
  };

  TERRACE_RULE_FUNCTION static Factors factors(const RuleConstants& constants,
                                               const StepScalars& scalars) {
    return {.one_minus_beta1 = number(constants[0]),
            .one_minus_beta2 = number(constants[1]),
            .beta2 = number(constants[2]),
            .epsilon = number(constants[3]),
            .minus_step_size = number(scalars.of_rule[0]),
            .root_of_correction = number(scalars.of_rule[1]),
            .one = number(1.0F)};
  }

  // Returns the factor for a parameter: the part of it that is left.
  TERRACE_RULE_FUNCTION static float decay(const StepScalars& scalars, float weight_decay) {
    return weight_decay == 0.0F ? 1.0F : scalars.of_rule[2];
  }

  TERRACE_RULE_FUNCTION static void update(const Factors& f, Number decay, Number g,
                                           Element<2>& element) {
    auto& [p, slots] = element;
    auto& [m, v] = slots;
    m = fused(f.one_minus_beta1, g - m, m);
    v = fused(f.one_minus_beta2 * g, g, v * f.beta2);
    const Number d = square_root(v) / f.root_of_correction + f.epsilon;
    // A sum, in the form whose operands' order says which of two NaNs goes on.
    p = fused(f.one, f.minus_step_size * m / d, p * decay);
  }
};
