// Lion (Chen et al. 2023, arXiv:2302.06675): steps of one size, by the sign of a mean of gradients;
// the decay is beside it. Written as correctly rounded fp32 operations in this order, the same on
// every processor (fma only where said), where g is the gradient times gradient_scale:
//   c  = fma(1 - beta1, g - m, m)
//   p  = fma(-(learning_rate * weight_decay), p, p)
//   p  = fma(-learning_rate, sign(c), p)
//   m  = fma(1 - beta2, g - m, m)
// 1 - beta and learning_rate * weight_decay are rounded to fp32 first. sign(c) is 1 or -1 with the
// sign of c, also of denormals; for a zero it is that zero, so p stays, and for NaN it is NaN.
struct Lion {
  static constexpr std::string_view kName = "lion";
  static constexpr std::array<Slot, 1> kSlots = {{{"exp_avg"}}};
  static constexpr std::array<Hyperparameter, 2> kHyperparameters = {{
      {"lion-beta1", "lion: decay rate of the mean whose sign gives the step (0.9)", 0.9},
      {"lion-beta2", "lion: decay rate of the mean that is kept (0.99)", 0.99},
  }};

  static std::array<float, kMostRuleScalars> step_scalars(const RuleOptions& /*options*/,
                                                          std::int64_t /*updates*/,
                                                          double /*learning_rate*/) {
    return {};
  }

  static RuleConstants constants(const RuleOptions& options) {
    const auto [beta1, beta2, none, no_other] = fp32_values(options);
    return {1.0F - beta1, 1.0F - beta2};
  }

  struct Factors {
    Number one_minus_beta1, one_minus_beta2;
    Number minus_rate;  // -learning_rate
  };

  TERRACE_RULE_FUNCTION static Factors factors(const RuleConstants& constants,
                                               const StepScalars& scalars) {
    return {.one_minus_beta1 = number(constants[0]),
            .one_minus_beta2 = number(constants[1]),
            .minus_rate = number(-scalars.learning_rate)};
  }

  TERRACE_RULE_FUNCTION static float decay(const StepScalars& scalars, float weight_decay) {
    return -(scalars.learning_rate * weight_decay);
  }

  TERRACE_RULE_FUNCTION static void update(const Factors& f, Number decay, Number g,
                                           Element<1>& element) {
    auto& [p, slots] = element;
    auto& [m] = slots;
    const Number c = fused(f.one_minus_beta1, g - m, m);
    p = fused(decay, p, p);
    p = fused(f.minus_rate, sign(c), p);
    m = fused(f.one_minus_beta2, g - m, m);
  }
};
