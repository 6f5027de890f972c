/* Systems of equations with matrices of a simple form. */
#include <complex.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/lapack/routines_impl.h"

/* --- Triangular ----------------------------------------------------------- */

typedef void trsm_fn(const char *side, const char *triangle, const char *how,
                     const char *diagonal, const int32_t *m, const int32_t *n,
                     const void *alpha, const void *a, const int32_t *lda,
                     void *b, const int32_t *ldb, size_t length_1,
                     size_t length_2, size_t length_3, size_t length_4);

/* One, of any of the four types, at its beginning. */
static const void *one_of(const tow_lapack_call_t *call)
{
    static const float single[2] = {1, 0};
    static const double twice[2] = {1, 0};
    return call->real_size == sizeof(float) ? (const void *)single : twice;
}

static bool run_trsm(tow_lapack_call_t *call)
{
    char side, triangle, how, diagonal;
    if (!tow_lapack_letter(call, "side", "LR", &side) ||
        !tow_lapack_letter(call, "uplo", "LU", &triangle) ||
        !tow_lapack_letter(call, "trans_x", "NTC", &how) ||
        !tow_lapack_letter(call, "diag", "NU", &diagonal))
        return false;
    trsm_fn *trsm = (trsm_fn *)call->routine;
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t a = tow_lapack_dim(call, 'a');
    if (a != (side == 'L' ? m : n))
        return tow_lapack_fail(call, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                               "a triangle of %d rows at side %c of %d x %d", a,
                               side, m, n);
    int32_t lda = tow_lapack_leading(a), ldb = tow_lapack_leading(m);
    for (size_t i = 0; i < call->matrix_count; i++)
        trsm(&side, &triangle, &how, &diagonal, &m, &n, one_of(call),
             tow_lapack_argument(call, 0, i), &lda,
             tow_lapack_result(call, 0, i), &ldb, 1, 1, 1, 1);
    return true;
}

const tow_lapack_routine_t tow_lapack_trsm = {
    .names = {"trsm", "trsm"},
    .buffers = {"Taa Tmn > Tmn=1", "Taa Tmn > Tmn=1"},
    .run = run_trsm,
};

/* --- Tridiagonal ---------------------------------------------------------- */

typedef void gtsv_fn(const int32_t *n, const int32_t *columns, void *below,
                     void *diagonal, void *above, void *b, const int32_t *ldb,
                     int32_t *info);

/* All three diagonals come with n elements; the first of those below means
 * nothing, and LAPACK wants them without it. */
static bool run_gtsv(tow_lapack_call_t *call)
{
    gtsv_fn *gtsv = (gtsv_fn *)call->routine;
    int32_t n = tow_lapack_dim(call, 'n'), r = tow_lapack_dim(call, 'r');
    int32_t ldb = tow_lapack_leading(n);
    size_t first = n > 0 ? call->element_size : 0;
    for (size_t i = 0; i < call->matrix_count; i++)
        gtsv(&n, &r, (char *)tow_lapack_result(call, 0, i) + first,
             tow_lapack_result(call, 1, i), tow_lapack_result(call, 2, i),
             tow_lapack_result(call, 3, i), &ldb,
             tow_lapack_result(call, 4, i));
    return true;
}

#define GTSV "Tn Tn Tn Tnr > Tn=0 Tn=1 Tn=2 Tnr=3 I"
const tow_lapack_routine_t tow_lapack_gtsv = {
    .names = {"gtsv", "gtsv"},
    .buffers = {GTSV, GTSV},
    .run = run_gtsv,
};

/* --- Tridiagonal, nearly singular ----------------------------------------- */

typedef void lagtf_fn(const int32_t *n, void *diagonal, const void *lambda,
                      void *above, void *below, const void *tolerance,
                      void *above_2, int32_t *order, int32_t *info);
typedef void lagts_fn(const int32_t *job, const int32_t *n,
                      const void *diagonal, const void *above,
                      const void *below, const void *above_2,
                      const int32_t *order, void *y, void *tolerance,
                      int32_t *info);

/* Factors the matrix, whose parts follow one another in `scratch`, and solves
 * for each column. Job -1: where a division would overflow, the divisor is
 * perturbed. That is what inverse iteration for eigenvectors needs: there the
 * matrix is singular but for rounding. */
static void solve_perturbed(const tow_lapack_call_t *call, lagtf_fn *lagtf,
                            lagts_fn *lagts, size_t index, char *scratch,
                            int32_t *order)
{
    int32_t n = tow_lapack_dim(call, 'n'), r = tow_lapack_dim(call, 'r');
    int32_t job = -1, info;
    size_t row = (size_t)n * call->element_size;
    char *diagonal = scratch, *above = diagonal + row, *below = above + row;
    char *above_2 = below + row;
    const double zero = 0;
    double tolerance = 0; /* Lets lagts choose. */
    memcpy(diagonal, tow_lapack_argument(call, 1, index), row);
    memcpy(above, tow_lapack_argument(call, 2, index), row);
    memcpy(below,
           (char *)tow_lapack_argument(call, 0, index) + call->element_size,
           row - call->element_size);
    memset(above_2, 0, row);
    lagtf(&n, diagonal, &zero, above, below, &zero, above_2, order, &info);
    char *column = tow_lapack_result(call, 0, index);
    for (int32_t i = 0; i < r; i++, column += row)
        lagts(&job, &n, diagonal, above, below, above_2, order, column,
              &tolerance, &info);
}

/* --- The same for complex matrices, which LAPACK does not have ------------ */

/* One matrix, factored: rows were exchanged where that made the pivot larger,
 * so the upper triangle has two diagonals above the main one. */
typedef struct factors {
    int32_t n;
    double _Complex *pivots, *above, *above_2, *multipliers;
    bool *is_exchanged;      /* row i with row i + 1 */
    double least, tolerance; /* below it 1 / x overflows; what to perturb by */
} factors_t;

static double _Complex element_of(const tow_lapack_call_t *call,
                                  const void *elements, int32_t index)
{
    if (call->real_size == sizeof(float))
        return ((const float _Complex *)elements)[index];
    return ((const double _Complex *)elements)[index];
}

static void eliminate_below(factors_t *f, int32_t row, double _Complex below)
{
    double _Complex *pivots = f->pivots + row, *above = f->above + row;
    f->is_exchanged[row] = cabs(below) > cabs(*pivots);
    if (f->is_exchanged[row]) {
        double _Complex pivot = *pivots, beside = *above;
        pivots[0] = below;
        above[0] = pivots[1];
        pivots[1] = beside;
        below = pivot;
        f->above_2[row] = above[1];
        above[1] = 0;
    }
    double _Complex factor = *pivots == 0 ? 0 : below / *pivots;
    f->multipliers[row] = factor;
    pivots[1] -= factor * above[0];
    above[1] -= factor * f->above_2[row];
}

/* The limits are those of the matrix's type: results must fit into it. */
static void factor_complex(const tow_lapack_call_t *call, size_t index,
                           factors_t *f)
{
    bool is_single = call->real_size == sizeof(float);
    const void *below = tow_lapack_argument(call, 0, index);
    const void *diagonal = tow_lapack_argument(call, 1, index);
    const void *above = tow_lapack_argument(call, 2, index);
    for (int32_t i = 0; i < f->n; i++) {
        f->pivots[i] = element_of(call, diagonal, i);
        f->above[i] = i + 1 == f->n ? 0 : element_of(call, above, i);
        f->above_2[i] = 0;
    }
    for (int32_t i = 0; i + 1 < f->n; i++)
        eliminate_below(f, i, element_of(call, below, i + 1));
    double largest = 0;
    for (int32_t i = 0; i < f->n; i++) {
        largest = fmax(largest, cabs(f->pivots[i]));
        largest = fmax(largest, cabs(f->above[i]));
        largest = fmax(largest, cabs(f->above_2[i]));
    }
    double rounding = is_single ? FLT_EPSILON / 2 : DBL_EPSILON / 2;
    f->least = is_single ? FLT_MIN : DBL_MIN;
    f->tolerance = largest == 0 ? rounding : fmax(rounding * largest, f->least);
}

/* The pivot doubles its distance until the division is safe; a value that is
 * not finite makes it do so until it is 1. */
static double _Complex divide_perturbed(const factors_t *f,
                                        double _Complex value,
                                        double _Complex pivot)
{
    double step = copysign(f->tolerance, creal(pivot));
    while (cabs(pivot) == 0 ||
           (cabs(pivot) < 1 && cabs(value) * f->least > cabs(pivot))) {
        pivot += step;
        step *= 2;
    }
    return value / pivot;
}

static void solve_complex(const factors_t *f, double _Complex *y)
{
    for (int32_t i = 0; i + 1 < f->n; i++) {
        double _Complex first = f->is_exchanged[i] ? y[i + 1] : y[i];
        double _Complex second = f->is_exchanged[i] ? y[i] : y[i + 1];
        y[i] = first;
        y[i + 1] = second - f->multipliers[i] * first;
    }
    for (int32_t i = f->n - 1; i >= 0; i--) {
        if (i + 1 < f->n) y[i] -= f->above[i] * y[i + 1];
        if (i + 2 < f->n) y[i] -= f->above_2[i] * y[i + 2];
        y[i] = divide_perturbed(f, y[i], f->pivots[i]);
    }
}

static void solve_column(const tow_lapack_call_t *call, const factors_t *f,
                         void *column, double _Complex *y)
{
    for (int32_t i = 0; i < f->n; i++)
        y[i] = element_of(call, column, i);
    solve_complex(f, y);
    for (int32_t i = 0; i < f->n; i++) {
        if (call->real_size == sizeof(float))
            ((float _Complex *)column)[i] = (float _Complex)y[i];
        else
            ((double _Complex *)column)[i] = y[i];
    }
}

static bool run_complex(tow_lapack_call_t *call)
{
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    if (n == 0) return true;
    double _Complex *scratch =
        tow_lapack_scratch(call, 5 * n, sizeof(*scratch));
    bool *is_exchanged = tow_lapack_scratch(call, n, sizeof(*is_exchanged));
    bool is_well = scratch != NULL && is_exchanged != NULL;
    for (size_t i = 0; is_well && i < call->matrix_count; i++) {
        factors_t f = {.n = (int32_t)n,
                       .pivots = scratch,
                       .above = scratch + n,
                       .above_2 = scratch + 2 * n,
                       .multipliers = scratch + 3 * n,
                       .is_exchanged = is_exchanged};
        factor_complex(call, i, &f);
        char *column = tow_lapack_result(call, 0, i);
        for (int32_t j = 0; j < tow_lapack_dim(call, 'r'); j++)
            solve_column(call, &f, column + (size_t)j * n * call->element_size,
                         scratch + 4 * n);
    }
    free(is_exchanged);
    free(scratch);
    return is_well;
}

static bool run_lagts(tow_lapack_call_t *call)
{
    if (call->is_complex) return run_complex(call);
    lagtf_fn *lagtf = (lagtf_fn *)tow_lapack_find(call, "lagtf");
    if (lagtf == NULL) return false;
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    if (n == 0) return true;
    char *scratch = tow_lapack_scratch(call, 4 * n, call->element_size);
    int32_t *order = tow_lapack_scratch(call, n, sizeof(*order));
    bool is_well = scratch != NULL && order != NULL;
    for (size_t i = 0; is_well && i < call->matrix_count; i++)
        solve_perturbed(call, lagtf, (lagts_fn *)call->routine, i, scratch,
                        order);
    free(order);
    free(scratch);
    return is_well;
}

#define LAGTS "Tn Tn Tn Tnr > Tnr=3"
const tow_lapack_routine_t tow_lapack_lagts = {
    .names = {"lagts", NULL},
    .buffers = {LAGTS, LAGTS},
    .run = run_lagts,
};
