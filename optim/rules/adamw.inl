// AdamW (Loshchilov and Hutter, 2019): decay of the weights beside the moments of Adam. Written as
// correctly rounded fp32 operations in this order, the same on every processor (fma only where
// said), where g is the gradient times gradient_scale:
//   m  = fma(1 - beta1, g - m, m)
//   v  = fma(1 - beta2, g * g - v, v)
//   mh = m * (1 / bias_correction_1)
//   d  = sqrt(v * (1 / bias_correction_2)) + epsilon
//   p  = fma(-(learning_rate * weight_decay), p, p)
//   p  = fma(-learning_rate, mh / d, p)
// 1 - beta, 1 / bias_correction and learning_rate * weight_decay are rounded to fp32 first, because
// an update would have to wait for divisions. Denormals are kept. The scalars of the t-th update
// are 1 - beta1^t and 1 - beta2^t, computed in fp64.
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  static constexpr std::array<Slot, 2> kSlots = {{{"exp_avg"}, {"exp_avg_sq", false}}};
  static constexpr std::array<Hyperparameter, 3> kHyperparameters = {{
      {"adam-beta1", "adamw: decay rate of the first moment (0.9)", 0.9},
      {"adam-beta2", "adamw: decay rate of the second moment (0.95)", 0.95},
      {"adam-epsilon", "adamw: added to the square root of the second moment (1e-8)", 1e-8,
       Hyperparameter::Range::kPositive},
  }};

  static std::array<float, kMostRuleScalars> step_scalars(const RuleOptions& options,
                                                          std::int64_t updates,
                                                          double /*learning_rate*/) {
    const auto [beta1, beta2, epsilon, none] = fp32_values(options);
    const auto n = static_cast<double>(updates);
    return {static_cast<float>(1.0 - std::pow(beta1, n)),
            static_cast<float>(1.0 - std::pow(beta2, n))};
  }

  static RuleConstants constants(const RuleOptions& options) {
    const auto [beta1, beta2, epsilon, none] = fp32_values(options);
    return {1.0F - beta1, 1.0F - beta2, epsilon};
  }

  struct Factors {
    Number one_minus_beta1, one_minus_beta2;
    Number unbias_1, unbias_2;  // 1 / bias correction
    Number epsilon;
    Number minus_rate;  // -learning_rate
  };

  TERRACE_RULE_FUNCTION static Factors factors(const RuleConstants& constants,
                                               const StepScalars& scalars) {
    return {.one_minus_beta1 = number(constants[0]),
            .one_minus_beta2 = number(constants[1]),
            .unbias_1 = number(1.0F / scalars.of_rule[0]),
            .unbias_2 = number(1.0F / scalars.of_rule[1]),
            .epsilon = number(constants[2]),
            .minus_rate = number(-scalars.learning_rate)};
  }

  TERRACE_RULE_FUNCTION static float decay(const StepScalars& scalars, float weight_decay) {
    return -(scalars.learning_rate * weight_decay);
  }

  TERRACE_RULE_FUNCTION static void update(const Factors& f, Number decay, Number g,
                                           Element<2>& element) {
    auto& [p, slots] = element;
    auto& [m, v] = slots;
    m = fused(f.one_minus_beta1, g - m, m);
    v = fused(f.one_minus_beta2, g * g - v, v);
    const Number mh = m * f.unbias_1;
    const Number d = square_root(v * f.unbias_2) + f.epsilon;
    p = fused(decay, p, p);
    p = fused(f.minus_rate, mh / d, p);
  }
};
