#include <algorithm>
#include <functional>

#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

using Values = std::vector<double>;

constexpr TeacherLoss kKinds[] = {TeacherLoss::kSoftCrossEntropy,  TeacherLoss::kKlDivergence,
                                  TeacherLoss::kReverseKl,         TeacherLoss::kJensenShannon,
                                  TeacherLoss::kTeacherArgmax,     TeacherLoss::kTotalVariation,
                                  TeacherLoss::kNegativeLogAccept, TeacherLoss::kHybrid};

Values log_softmax(const Values& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double value : x) sum += std::exp(value - largest);
  Values result = x;
  for (double& value : result) value -= largest + std::log(sum);
  return result;
}

double overlap(const Values& log_p, const Values& log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) sum += std::exp(std::min(log_p[i], log_q[i]));
  return sum;
}

/// The definition, in double. `lambda_at` are the draft logits at which kHybrid's factor is taken.
double loss_of(TeacherLoss kind, const Values& z, const Values& u, const Values& lambda_at) {
  const Values log_q = log_softmax(z), log_p = log_softmax(u);
  const auto sum = [&](const std::function<double(double, double)>& term) {
    double total = 0;
    for (size_t i = 0; i < z.size(); ++i) total += term(log_p[i], log_q[i]);
    return total;
  };
  const auto kl = [](double a, double b) { return std::exp(a) * (a - b); };
  const double accept = overlap(log_p, log_q);
  switch (kind) {
    case TeacherLoss::kSoftCrossEntropy:
      return sum([](double p, double q) { return -std::exp(p) * q; });
    case TeacherLoss::kKlDivergence: return sum(kl);
    case TeacherLoss::kReverseKl: return sum([&](double p, double q) { return kl(q, p); });
    case TeacherLoss::kJensenShannon:
      return sum([&](double p, double q) {
        const double m = std::log((std::exp(p) + std::exp(q)) / 2);
        return (kl(p, m) + kl(q, m)) / 2;
      });
    case TeacherLoss::kTeacherArgmax:
      return -log_q[static_cast<size_t>(std::max_element(u.begin(), u.end()) - u.begin())];
    case TeacherLoss::kTotalVariation: return 1 - accept;
    case TeacherLoss::kNegativeLogAccept: return -std::log(std::max(accept, 1e-5));
    case TeacherLoss::kHybrid: {
      const double lambda = std::exp(-3 * overlap(log_p, log_softmax(lambda_at)));
      return lambda * sum(kl) + (1 - lambda) * (1 - accept);
    }
  }
  return 0;
}

class Losses : public KernelTest {
 protected:
  static Values row(const Values& x, size_t r, size_t n) {
    return Values(x.begin() + static_cast<int64_t>(r * n),
                  x.begin() + static_cast<int64_t>((r + 1) * n));
  }
};

TEST_F(Losses, TeacherLossesMatchTheirDefinitions) {
  for (const int64_t vocabulary : {1, 10, 37, 5003}) {
    const size_t n = static_cast<size_t>(vocabulary);
    const Tensor z = random(DType::kF32, {4, vocabulary}, 2),
                 u = random(DType::kF32, {4, vocabulary}, 3);
    const Values draft = values(z), teacher = values(u);
    for (const TeacherLoss kind : kKinds) {
      Values expected, argmax, teacher_argmax;
      for (size_t r = 0; r < 4; ++r) {
        const Values zr = row(draft, r, n), ur = row(teacher, r, n);
        expected.push_back(loss_of(kind, zr, ur, zr));
        argmax.push_back(static_cast<double>(std::max_element(zr.begin(), zr.end()) - zr.begin()));
        teacher_argmax.push_back(
            static_cast<double>(std::max_element(ur.begin(), ur.end()) - ur.begin()));
      }
      const Tensor loss = poisoned(DType::kF32, {4});
      const Tensor z_argmax = poisoned(DType::kI32, {4}), u_argmax = poisoned(DType::kI32, {4});
      ops().teacher_loss(context_, kind, z, u, ConstTensorView(), Gradient::kNone, loss, z_argmax,
                         u_argmax);
      SCOPED_TRACE(static_cast<int>(kind));
      expect_near(loss, expected, 2e-6);
      EXPECT_EQ(values(z_argmax), argmax);
      EXPECT_EQ(values(u_argmax), teacher_argmax);
      EXPECT_EQ(values(z), draft) << "logits changed without being asked for the gradient";
      EXPECT_EQ(values(u), teacher);
    }
  }
}

TEST_F(Losses, TeacherGradientsAreThoseOfTheDefinitions) {
  const int64_t rows = 3, vocabulary = 21;
  const size_t n = static_cast<size_t>(vocabulary);
  const Tensor logits = random(DType::kF32, {rows, vocabulary}, 1.5);
  const Tensor teacher = random(DType::kF32, {rows, vocabulary}, 1.5);
  const Values z = values(logits), u = values(teacher), weight = {1, 0, -2.5};
  const Tensor weights = from(DType::kF32, {rows}, weight);
  for (const TeacherLoss kind : kKinds) {
    Values expected(z.size());
    for (size_t i = 0; i < z.size(); ++i) {
      const Values at = row(z, i / n, n), ur = row(u, i / n, n);
      constexpr double kStep = 1e-5;
      Values up = at, down = at;
      up[i % n] += kStep;
      down[i % n] -= kStep;
      expected[i] =
          weight[i / n] * (loss_of(kind, up, ur, at) - loss_of(kind, down, ur, at)) / (2 * kStep);
    }
    const Tensor x = from(DType::kF32, {rows, vocabulary}, z);
    const Tensor loss = poisoned(DType::kF32, {rows});
    ops().teacher_loss(context_, kind, x, teacher, weights, Gradient::kInPlace, loss, TensorView(),
                       TensorView());
    SCOPED_TRACE(static_cast<int>(kind));
    expect_near(x, expected, 3e-6, 1);
  }
}

TEST_F(Losses, NegativeLogAcceptIsFlatBelowItsFloor) {
  const Tensor z = from(DType::kF32, {1, 2}, {40, 0}), u = from(DType::kF32, {1, 2}, {0, 40});
  const Tensor weights = from(DType::kF32, {1}, {1}), loss = poisoned(DType::kF32, {1});
  ops().teacher_loss(context_, TeacherLoss::kNegativeLogAccept, z, u, weights, Gradient::kInPlace,
                     loss, TensorView(), TensorView());
  expect_near(loss, {-std::log(1e-5)}, 1e-6);
  EXPECT_EQ(values(z), (Values{0, 0}));
}

TEST_F(Losses, EqualDistributionsHaveNoLossAndNoGradient) {
  const Tensor u = random(DType::kF32, {2, 100});
  for (const TeacherLoss kind : kKinds) {
    if (kind == TeacherLoss::kSoftCrossEntropy || kind == TeacherLoss::kTeacherArgmax) continue;
    const Tensor z = from(DType::kF32, {2, 100}, values(u));
    const Tensor weights = from(DType::kF32, {2}, {1, 1}), loss = poisoned(DType::kF32, {2});
    ops().teacher_loss(context_, kind, z, u, weights, Gradient::kInPlace, loss, TensorView(),
                       TensorView());
    SCOPED_TRACE(static_cast<int>(kind));
    expect_near(loss, {0, 0}, 1e-6);
    expect_near(z, Values(200), 1e-6);
  }
}

TEST_F(Losses, DistantLogitsStayFinite) {
  const Tensor u = from(DType::kF32, {1, 5}, {-500, 90, 0, 500, -90});
  for (const TeacherLoss kind : kKinds) {
    const Tensor z = from(DType::kF32, {1, 5}, {900, -900, 0, 3, -4});
    const Tensor weights = from(DType::kF32, {1}, {1}), loss = poisoned(DType::kF32, {1});
    ops().teacher_loss(context_, kind, z, u, weights, Gradient::kInPlace, loss, TensorView(),
                       TensorView());
    EXPECT_TRUE(std::isfinite(values(loss)[0])) << static_cast<int>(kind);
    for (const double value : values(z)) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_F(Losses, CrossEntropyMatchesItsDefinitionAndGradient) {
  for (const int64_t vocabulary : {1, 13, 49152}) {
    const size_t n = static_cast<size_t>(vocabulary);
    const int64_t rows = 5;
    const Tensor wide = random(DType::kF32, {rows, vocabulary + 3}, 4);
    const TensorView logits = wide.view().columns(1, vocabulary + 1);
    const Values z = values(logits), weight = {1, 0.5, 0, 2, 1};
    Values label, loss, gradient(z.size()), argmax;
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const Values zr = row(z, r, n), log_q = log_softmax(zr);
      label.push_back(static_cast<double>(random_.below(n)));
      loss.push_back(-log_q[static_cast<size_t>(label[r])]);
      argmax.push_back(static_cast<double>(std::max_element(zr.begin(), zr.end()) - zr.begin()));
      for (size_t i = 0; i < n; ++i) {
        const double one = i == static_cast<size_t>(label[r]) ? 1 : 0;
        gradient[r * n + i] = weight[r] * (std::exp(log_q[i]) - one);
      }
    }
    const Tensor labels = from(DType::kI32, {rows}, label), got = poisoned(DType::kF32, {rows});
    const Tensor weights = from(DType::kF32, {rows}, weight), best = poisoned(DType::kI32, {rows});
    ops().cross_entropy(context_, logits, labels, weights, Gradient::kNone, got, best);
    expect_near(got, loss, 2e-6);
    EXPECT_EQ(values(best), argmax);
    EXPECT_EQ(values(logits), z);
    ops().cross_entropy(context_, logits, labels, weights, Gradient::kInPlace, got, TensorView());
    expect_near(got, loss, 2e-6);
    expect_near(logits, gradient, 1e-6);
  }
}

TEST_F(Losses, ALabelOutsideTheVocabularyCostsNothing) {
  const Tensor z = random(DType::kF32, {3, 9}), labels = from(DType::kI32, {3}, {-1, 2, 9});
  const Tensor weights = from(DType::kF32, {3}, {1, 1, 1}), loss = poisoned(DType::kF32, {3});
  ops().cross_entropy(context_, z, labels, weights, Gradient::kInPlace, loss, TensorView());
  const Values losses = values(loss), gradient = values(z);
  EXPECT_EQ(losses[0], 0);
  EXPECT_GT(losses[1], 0);
  EXPECT_EQ(losses[2], 0);
  EXPECT_EQ(row(gradient, 0, 9), Values(9, 0));
  EXPECT_NE(row(gradient, 1, 9), Values(9, 0));
  EXPECT_EQ(row(gradient, 2, 9), Values(9, 0));
}

TEST_F(Losses, WithoutWeightsThereIsNoGradient) {
  const Tensor z = random(DType::kF32, {2, 9}), loss = poisoned(DType::kF32, {2});
  const Tensor labels = from(DType::kI32, {2}, {0, 1}), u = random(DType::kF32, {2, 9});
  ops().cross_entropy(context_, z, labels, {}, Gradient::kNone, loss, {});
  EXPECT_DEATH(ops().cross_entropy(context_, z, labels, {}, Gradient::kInPlace, loss, {}),
               "a gradient needs weights");
  EXPECT_DEATH(ops().teacher_loss(context_, TeacherLoss::kHybrid, z, u, {}, Gradient::kInPlace,
                                  loss, {}, {}),
               "a gradient needs weights");
  const Tensor short_loss = poisoned(DType::kF32, {1});
  EXPECT_DEATH(ops().cross_entropy(context_, z, labels, {}, Gradient::kNone, short_loss, {}),
               "\\[1\\] F32");
}

TEST_F(Losses, ArgmaxTakesTheLowestIndexOnATie) {
  Values x(3 * 1000);
  x[977] = x[13] = x[400] = 5;
  for (size_t i = 0; i < 1000; ++i) x[2000 + i] = -1e30;
  x[1999] = 1;
  const Tensor logits = from(DType::kF32, {3, 1000}, x), out = poisoned(DType::kI32, {3});
  ops().argmax(context_, logits, out);
  EXPECT_EQ(values(out), (Values{13, 999, 0}));
}

}  // namespace
}  // namespace percheron::kernel_test
