/* Systems of equations with matrices of a simple form. */
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

static bool run_lagts(tow_lapack_call_t *call)
{
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

const tow_lapack_routine_t tow_lapack_lagts = {
    .names = {"lagts", NULL},
    .buffers = {"Tn Tn Tn Tnr > Tnr=3", NULL},
    .run = run_lagts,
};
