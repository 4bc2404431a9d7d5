// Each optimizer is a small function of one element, and one loop that the compiler makes vectors of. Options that
// change what is computed are template parameters, so that the loop has no branches. This file is compiled once per
// instruction set (foreach_target) and the best is chosen at run time. All of them give the same bits: they add,
// multiply, divide and take roots, which are exact to the last bit, and nothing is contracted.
#include "optim/kernel.hpp"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {

// What every element needs; numbers are rounded to the precision of the state once, as PyTorch does.
template <class T>
struct Common {
  explicit Common(const Rule& rule)
      : sign(rule.options.maximize ? T(-1) : T(1)),
        decay(static_cast<T>(rule.options.weight_decay)),
        kept(static_cast<T>(1.0 - rule.options.learning_rate * rule.options.weight_decay)),
        rate(static_cast<T>(rule.rate)),
        epsilon(static_cast<T>(rule.options.epsilon)) {}

  /// The gradient of what is minimised, with the decay of weights that is part of it.
  HWY_INLINE HWY_ATTR T gradient(T given, T weight) const { return std::fma(weight, decay, sign * given); }
  HWY_INLINE HWY_ATTR T moved(T weight, T update) const { return std::fma(update, -rate, weight); }

  T sign;
  T decay;
  T kept;  // of a weight, by a decay that is apart from the gradient
  T rate;
  T epsilon;
};

// Interpolates from the nearer end.
template <class T>
HWY_INLINE HWY_ATTR T between(T from, T to, T part) {
  const bool near = part < T(0.5);
  return std::fma(near ? part : part - T(1), to - from, near ? from : to);
}

template <class T>
struct PlainSgd : Common<T> {
  using Common<T>::Common;
  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T&, T&, T&) const {
    return this->moved(weight, this->gradient(given, weight));
  }
};

template <class T, bool Nesterov>
struct MomentumSgd : Common<T> {
  explicit MomentumSgd(const Rule& rule)
      : Common<T>(rule),
        momentum(static_cast<T>(rule.options.momentum)),
        carried(rule.first_step ? T(0) : momentum),  // the first step has no past, and is not damped
        taken(rule.first_step ? T(1) : static_cast<T>(1.0 - rule.options.dampening)) {}

  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T& velocity, T&, T&) const {
    const T gradient = this->gradient(given, weight);
    velocity = std::fma(gradient, taken, carried * velocity);
    return this->moved(weight, Nesterov ? std::fma(velocity, momentum, gradient) : velocity);
  }

  T momentum, carried, taken;
};

template <class T, bool Decoupled, bool Amsgrad>
struct Adam : Common<T> {
  explicit Adam(const Rule& rule)
      : Common<T>(rule),
        part1(static_cast<T>(1.0 - rule.options.beta1)),
        beta2(static_cast<T>(rule.options.beta2)),
        part2(static_cast<T>(1.0 - rule.options.beta2)),
        root(static_cast<T>(rule.root_of_second)) {}

  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T& mean, T& square, T& largest) const {
    const T gradient = Decoupled ? this->sign * given : this->gradient(given, weight);
    if (Decoupled) weight *= this->kept;
    mean = between(mean, gradient, part1);
    square = std::fma(part2 * gradient, gradient, square * beta2);
    T second = square;
    if (Amsgrad) second = largest = largest < square ? square : largest;
    return weight - this->rate * mean / (std::sqrt(second) / root + this->epsilon);
  }

  T part1, beta2, part2, root;
};

template <class T>
struct Adagrad : Common<T> {
  using Common<T>::Common;
  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T& sum, T&, T&) const {
    const T gradient = this->gradient(given, weight);
    sum = std::fma(gradient, gradient, sum);
    return weight - this->rate * gradient / (std::sqrt(sum) + this->epsilon);
  }
};

// States: the mean square, then the velocity, then the mean, as far as they are there.
template <class T, bool Momentum, bool Centered>
struct RmsProp : Common<T> {
  explicit RmsProp(const Rule& rule)
      : Common<T>(rule),
        momentum(static_cast<T>(rule.options.momentum)),
        smoothing(static_cast<T>(rule.options.smoothing)),
        part(static_cast<T>(1.0 - rule.options.smoothing)) {}

  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T& square, T& second, T& third) const {
    T& velocity = second;
    T& mean = Momentum ? third : second;
    const T gradient = this->gradient(given, weight);
    square = std::fma(part * gradient, gradient, square * smoothing);
    T spread = square;
    if (Centered) {
      mean = between(mean, gradient, part);
      spread = std::fma(-mean, mean, square);
    }
    const T scale = std::sqrt(spread) + this->epsilon;
    if (!Momentum) return weight - this->rate * gradient / scale;
    velocity = velocity * momentum + gradient / scale;
    return this->moved(weight, velocity);
  }

  T momentum, smoothing, part;
};

template <class T>
struct Lion : Common<T> {
  explicit Lion(const Rule& rule)
      : Common<T>(rule),
        beta1(static_cast<T>(rule.options.beta1)),
        part1(static_cast<T>(1.0 - rule.options.beta1)),
        beta2(static_cast<T>(rule.options.beta2)),
        part2(static_cast<T>(1.0 - rule.options.beta2)) {}

  HWY_INLINE HWY_ATTR T operator()(T weight, T given, T& mean, T&, T&) const {
    const T gradient = this->sign * given;
    const T direction = std::fma(gradient, part1, beta1 * mean);
    mean = std::fma(gradient, part2, beta2 * mean);
    const T step = direction > T(0) ? T(1) : direction < T(0) ? T(-1) : direction;  // NaN stays NaN
    return this->moved(weight * this->kept, step);
  }

  T beta1, part1, beta2, part2;
};

template <std::size_t States, class T, class Step>
HWY_INLINE HWY_ATTR void for_each(const Elements<T>& elements, const Step& step) {
  const T* weights = elements.weights;
  const T* gradient = elements.gradient;
  T* result = elements.result;
  T* first = elements.state[0];
  T* second = elements.state[1];
  T* third = elements.state[2];
  const std::size_t count = elements.count;
#pragma GCC ivdep  // what overlaps does so element by element
  for (std::size_t i = 0; i < count; ++i) {
    T unused = T(0);
    T a = States > 0 ? first[i] : T(0), b = States > 1 ? second[i] : T(0), c = States > 2 ? third[i] : T(0);
    result[i] = step(weights[i], gradient[i], a, States > 1 ? b : unused, States > 2 ? c : unused);
    if (States > 0) first[i] = a;
    if (States > 1) second[i] = b;
    if (States > 2) third[i] = c;
  }
}

template <class T, bool Decoupled>
void apply_adam(const Rule& rule, const Elements<T>& elements) {
  if (rule.options.amsgrad) return for_each<3>(elements, Adam<T, Decoupled, true>(rule));
  for_each<2>(elements, Adam<T, Decoupled, false>(rule));
}

template <class T>
void apply_rmsprop(const Rule& rule, const Elements<T>& elements) {
  const bool momentum = rule.options.momentum != 0.0;
  if (momentum && rule.options.centered) return for_each<3>(elements, RmsProp<T, true, true>(rule));
  if (momentum) return for_each<2>(elements, RmsProp<T, true, false>(rule));
  if (rule.options.centered) return for_each<2>(elements, RmsProp<T, false, true>(rule));
  for_each<1>(elements, RmsProp<T, false, false>(rule));
}

template <class T>
void apply_rule(const Rule& rule, const Elements<T>& elements) {
  switch (rule.options.kind) {
    case OptimizerKind::sgd:
      if (rule.options.momentum == 0.0) return for_each<0>(elements, PlainSgd<T>(rule));
      if (rule.options.nesterov) return for_each<1>(elements, MomentumSgd<T, true>(rule));
      return for_each<1>(elements, MomentumSgd<T, false>(rule));
    case OptimizerKind::adam:
      return apply_adam<T, false>(rule, elements);
    case OptimizerKind::adamw:
      return apply_adam<T, true>(rule, elements);
    case OptimizerKind::adagrad:
      return for_each<1>(elements, Adagrad<T>(rule));
    case OptimizerKind::rmsprop:
      return apply_rmsprop(rule, elements);
    case OptimizerKind::lion:
      return for_each<1>(elements, Lion<T>(rule));
  }
}

void apply_f32(const Rule& rule, const Elements<float>& elements) { apply_rule(rule, elements); }
void apply_f64(const Rule& rule, const Elements<double>& elements) { apply_rule(rule, elements); }

}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {

HWY_EXPORT(apply_f32);
HWY_EXPORT(apply_f64);

void apply(const Rule& rule, const Elements<float>& elements) { HWY_DYNAMIC_DISPATCH(apply_f32)(rule, elements); }
void apply(const Rule& rule, const Elements<double>& elements) { HWY_DYNAMIC_DISPATCH(apply_f64)(rule, elements); }

Rule rule_at(const OptimizerOptions& options, std::int64_t step) {
  Rule rule{.options = options, .first_step = step == 1, .rate = options.learning_rate};
  const auto steps = static_cast<double>(step);
  switch (options.kind) {
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
      rule.rate = options.learning_rate / (1.0 - std::pow(options.beta1, steps));
      rule.root_of_second = std::sqrt(1.0 - std::pow(options.beta2, steps));
      break;
    case OptimizerKind::adagrad:
      rule.rate = options.learning_rate / (1.0 + (steps - 1.0) * options.learning_rate_decay);
      break;
    default:
      break;
  }
  return rule;
}

}  // namespace lockstep::optim
#endif
