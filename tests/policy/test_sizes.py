#!/usr/bin/env python3
"""scripts/print_sizes.py finds the functions, classes and fields of the tree; its table is printed for the reviewer.

Standard library only.
"""
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent.parent
SPEC = importlib.util.spec_from_file_location("print_sizes", ROOT / "scripts" / "print_sizes.py")
sizes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sizes)


class Checks(unittest.TestCase):
    """Functions are found, whatever they look like and wherever they are."""

    def test_functions_of_namespaces_classes_and_templates_are_measured(self):
        text = """namespace a {
struct S final : Base<int> {
    S() : b_{1}, c_(2) {
        f();
    }
    int x = 3;
};
template <typename T>
__global__ void __launch_bounds__(128) kernel(T *out,
                                              int n) { // {
    for (int i = 0; i < n; ++i) {
        out[i] = '}';
    }
}
extern "C" int one(void) { return 1; }
constexpr int table[] = {
    1,
};
auto S::get() const -> int { return [] { return "{{"; }()[0]; }
} // namespace a
"""
        found = {name: lines for name, _, lines in sizes.functions(text)}
        self.assertEqual(found.pop("S", None), 3)
        self.assertEqual(found.pop("one", None), 1)
        self.assertEqual(found.pop("S::get", None), 1)
        self.assertEqual(sorted(found.values()), [7])

    def test_a_class_counts_what_it_declares_itself(self):
        text = """class C final : public Base<int, float> {
  public:
    C() : a_{1} {}
    explicit C(int a);
    C(const C &) = delete;
    int get() const { return a_; }
    template <typename T, typename U = std::map<int, T>> void put(std::map<T, U> what, int n = f(1));
    bool operator()(int) const;
    static constexpr int kSize = 3;
    struct Inner {
        int x, y;
        std::function<void(int, int)> call;
    };
    enum Kind { one, two };
    using Map = std::map<int, int>;

  private:
    int a_ = 0;
    std::map<int, std::function<int(int, int)>> b_;
    std::atomic<bool> c_{false};
    Inner inner_[2];
    double d_, e_;
};
"""
        found = {name: (methods, fields) for name, _, methods, fields in sizes.classes(text)}
        self.assertEqual(found, {"Inner": (0, 3), "C": (6, 7)})

    def test_most_of_the_tree_is_measured(self):
        tree = list(sizes.files())
        self.assertGreater(sum(len(sizes.functions(text)) for _, text in tree), 1500)
        self.assertGreater(sum(len(sizes.classes(text)) for _, text in tree), 500)
        sizes.main()


if __name__ == "__main__":
    unittest.main()
