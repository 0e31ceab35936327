// sdort::InterleavePhases. Inputs: X (N, H + 1 or H + 2, W + 1 or W + 2, 4C), bias (C), image (N, H, W, any), of which only
// the shape is read: it tells an odd size from an even one. Output: Y (N, 2H or 2H - 1, 2W or 2W - 1, C).
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

// Pixels, or rows, of the result that `small` of the image make, of which `phases` are X's.
int64_t size_of_result(int64_t small, int64_t phases, const Input& x, const Input& image) {
    const int64_t twice = phases - small - 1;
    require(small > 0 && (twice == 0 || twice == 1),
            "X " + to_string(x.shape) + " does not fit image " + to_string(image.shape) + ": one or two rows and columns more");
    return 2 * small - twice;
}

struct InterleavePhases {
    using Problem = interleave_phases::Problem;
    explicit InterleavePhases(const Node&) {}

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0), bias = context.input(1), image = context.input(2);
        require(x.shape.size() == 4 && x.shape[3] % 4 == 0, rows::shape_message("X", "(N, H, W, 4C)", x));
        require(image.shape.size() == 4 && image.shape[0] == x.shape[0], rows::shape_message("image", "(N, H, W, C)", image));
        const int64_t width = x.shape[3] / 4;
        rows::require_vector(bias, width, "bias");
        const int64_t height = size_of_result(image.shape[1], x.shape[1], x, image);
        const int64_t columns = size_of_result(image.shape[2], x.shape[2], x, image);
        void* y = context.output(0, {x.shape[0], height, columns, width});
        return {{x.data, bias.data, y}, x.shape[0] * height * columns, width, height, columns};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        for (int64_t row = first; row < first + count; ++row) pixel(p, row, static_cast<T*>(p.y) + row * p.width);
    }

    // kernel.h has the same sum.
    template <class T>
    SDORT_CPU_INLINE static void pixel(const Problem& p, int64_t row, T* y) {
        const int64_t x = row % p.image_width, in_rows = row / p.image_width, line = in_rows % p.height;
        const int64_t phase_rows = p.height / 2 + 1 + 2 * (p.height % 2), phase_columns = p.image_width / 2 + 1 + 2 * (p.image_width % 2);
        const T* image = static_cast<const T*>(p.x) + in_rows / p.height * phase_rows * phase_columns * 4 * p.width;
        const T* bias = static_cast<const T*>(p.bias);
        const int64_t row_terms = terms(line, p.height), terms_of_both = row_terms * terms(x, p.image_width);
        const auto term = [&](int64_t i) {
            const int64_t i_row = i % row_terms, i_column = i / row_terms;
            const int64_t at = (line + 1) / 2 + i_row, at_column = (x + 1) / 2 + i_column;
            const int64_t phase = 2 * (i_row ? 1 : line % 2) + (i_column ? 1 : x % 2);
            return image + ((at * phase_columns + at_column) * 4 + phase) * p.width;
        };
        const T* only = term(0);
        if (terms_of_both == 1) {
            for (int64_t c = 0; c < p.width; ++c) y[c] = static_cast<T>(static_cast<float>(only[c]) + static_cast<float>(bias[c]));
            return;
        }
        for (int64_t c = 0; c < p.width; ++c) {
            float sum = static_cast<float>(only[c]) + static_cast<float>(bias[c]);
            for (int64_t i = 1; i < terms_of_both; ++i) {
                const float value = static_cast<float>(term(i)[c]);
                sum += (i % row_terms == 1) == (i / row_terms == 1) ? value : -value;
            }
            y[c] = static_cast<T>(sum);
        }
    }

    // Of a row (or column) of Y: rows of X that it is the sum of.
    static int64_t terms(int64_t index, int64_t size) { return index % 2 == 0 && index + 1 == size ? 3 : 1; }
};

SDORT_ROW_OPERATOR(InterleavePhases, .domain = kSdort, .name = "InterleavePhases", .inputs = {{"X"}, {"bias"}, {"image"}},
                   .outputs = {{"Y"}})

}  // namespace
}  // namespace sdort
