/* Factorisations. Fortran passes everything by address, and after the last
 * argument the lengths of the letters among them. */
#include <stdlib.h>

#include "device/xla_cpu/lapack/routines_impl.h"

/* --- LU and Cholesky ------------------------------------------------------ */

typedef void getrf_fn(const int32_t *m, const int32_t *n, void *a,
                      const int32_t *lda, int32_t *pivots, int32_t *info);

static bool run_getrf(tow_lapack_call_t *call)
{
    getrf_fn *getrf = (getrf_fn *)call->routine;
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(m);
    for (size_t i = 0; i < call->matrix_count; i++)
        getrf(&m, &n, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_result(call, 1, i), tow_lapack_result(call, 2, i));
    return true;
}

const tow_lapack_routine_t tow_lapack_getrf = {
    .names = {"getrf", "getrf"},
    .buffers = {"Tmn > Tmn=0 Ik I", "Tmn > Tmn=0 Ik I"},
    .run = run_getrf,
};

typedef void potrf_fn(const char *triangle, const int32_t *n, void *a,
                      const int32_t *lda, int32_t *info, size_t length);

static bool run_potrf(tow_lapack_call_t *call)
{
    char triangle;
    if (!tow_lapack_letter(call, "uplo", "LU", &triangle)) return false;
    potrf_fn *potrf = (potrf_fn *)call->routine;
    int32_t n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(n);
    for (size_t i = 0; i < call->matrix_count; i++)
        potrf(&triangle, &n, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_result(call, 1, i), 1);
    return true;
}

const tow_lapack_routine_t tow_lapack_potrf = {
    .names = {"potrf", "potrf"},
    .buffers = {"Tnn > Tnn=0 I", "Tnn > Tnn=0 I"},
    .run = run_potrf,
};

/* --- QR ------------------------------------------------------------------- */

typedef void geqrf_fn(const int32_t *m, const int32_t *n, void *a,
                      const int32_t *lda, void *tau, void *work,
                      const int32_t *lwork, int32_t *info);

static bool run_geqrf(tow_lapack_call_t *call)
{
    geqrf_fn *geqrf = (geqrf_fn *)call->routine;
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(m), lwork = -1, info;
    double answer[2] = {0};
    geqrf(&m, &n, NULL, &lda, NULL, answer, &lwork, &info);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    if (work == NULL) return false;
    for (size_t i = 0; i < call->matrix_count; i++)
        geqrf(&m, &n, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_result(call, 1, i), work, &lwork, &info);
    free(work);
    return true;
}

const tow_lapack_routine_t tow_lapack_geqrf = {
    .names = {"geqrf", "geqrf"},
    .buffers = {"Tmn > Tmn=0 Tk", "Tmn > Tmn=0 Tk"},
    .run = run_geqrf,
};

typedef void sgeqp3_fn(const int32_t *m, const int32_t *n, void *a,
                       const int32_t *lda, int32_t *pivots, void *tau,
                       void *work, const int32_t *lwork, int32_t *info);
typedef void cgeqp3_fn(const int32_t *m, const int32_t *n, void *a,
                       const int32_t *lda, int32_t *pivots, void *tau,
                       void *work, const int32_t *lwork, void *rwork,
                       int32_t *info);

static void geqp3(const tow_lapack_call_t *call, void *a, int32_t *pivots,
                  void *tau, void *work, int32_t lwork, void *rwork)
{
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(m), info;
    if (call->is_complex)
        ((cgeqp3_fn *)call->routine)(&m, &n, a, &lda, pivots, tau, work, &lwork,
                                     rwork, &info);
    else
        ((sgeqp3_fn *)call->routine)(&m, &n, a, &lda, pivots, tau, work, &lwork,
                                     &info);
}

static bool run_geqp3(tow_lapack_call_t *call)
{
    double answer[2] = {0};
    int32_t lwork;
    geqp3(call, NULL, NULL, NULL, answer, -1, NULL);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    size_t rwork_count = 2 * (size_t)tow_lapack_dim(call, 'n');
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    void *rwork = tow_lapack_scratch(call, rwork_count, call->real_size);
    bool is_well = work != NULL && rwork != NULL;
    for (size_t i = 0; is_well && i < call->matrix_count; i++)
        geqp3(call, tow_lapack_result(call, 0, i),
              tow_lapack_result(call, 1, i), tow_lapack_result(call, 2, i),
              work, lwork, rwork);
    free(rwork);
    free(work);
    return is_well;
}

const tow_lapack_routine_t tow_lapack_geqp3 = {
    .names = {"geqp3", "geqp3"},
    .buffers = {"Tmn In > Tmn=0 In=1 Tk", "Tmn In > Tmn=0 In=1 Tk"},
    .run = run_geqp3,
};

typedef void orgqr_fn(const int32_t *m, const int32_t *n, const int32_t *k,
                      void *a, const int32_t *lda, const void *tau, void *work,
                      const int32_t *lwork, int32_t *info);

static bool run_orgqr(tow_lapack_call_t *call)
{
    orgqr_fn *orgqr = (orgqr_fn *)call->routine;
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t r = tow_lapack_dim(call, 'r');
    if (n > m || r > n)
        return tow_lapack_fail(call, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                               "%d reflectors of a %d x %d matrix", r, m, n);
    int32_t lda = tow_lapack_leading(m), lwork = -1, info;
    double answer[2] = {0};
    orgqr(&m, &n, &r, NULL, &lda, NULL, answer, &lwork, &info);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    if (work == NULL) return false;
    for (size_t i = 0; i < call->matrix_count; i++)
        orgqr(&m, &n, &r, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_argument(call, 1, i), work, &lwork, &info);
    free(work);
    return true;
}

const tow_lapack_routine_t tow_lapack_orgqr = {
    .names = {"orgqr", "ungqr"},
    .buffers = {"Tmn Tr > Tmn=0", "Tmn Tr > Tmn=0"},
    .run = run_orgqr,
};

typedef void ormqr_fn(const char *side, const char *transposed,
                      const int32_t *m, const int32_t *n, const int32_t *k,
                      void *a, const int32_t *lda, const void *tau, void *c,
                      const int32_t *ldc, void *work, const int32_t *lwork,
                      int32_t *info, size_t length_1, size_t length_2);

/* The reflectors are the columns of a p x q matrix. */
static bool check_ormqr(tow_lapack_call_t *call, bool is_left)
{
    int32_t p = tow_lapack_dim(call, 'p'), q = tow_lapack_dim(call, 'q');
    int32_t r = tow_lapack_dim(call, 'r');
    int32_t side = tow_lapack_dim(call, is_left ? 'm' : 'n');
    if (p == side && r <= q && r <= p) return true;
    return tow_lapack_fail(call, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                           "%d reflectors of a %d x %d matrix, for a product "
                           "with a side of %d",
                           r, p, q, side);
}

static bool run_ormqr(tow_lapack_call_t *call)
{
    bool is_left, is_transposed;
    if (!tow_lapack_flag(call, "left", &is_left) ||
        !tow_lapack_flag(call, "transpose", &is_transposed) ||
        !check_ormqr(call, is_left))
        return false;
    ormqr_fn *ormqr = (ormqr_fn *)call->routine;
    const char *side = is_left ? "L" : "R";
    const char *how = !is_transposed ? "N" : call->is_complex ? "C" : "T";
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t r = tow_lapack_dim(call, 'r'), lwork = -1, info;
    int32_t lda = tow_lapack_leading(tow_lapack_dim(call, 'p'));
    int32_t ldc = tow_lapack_leading(m);
    double answer[2] = {0};
    ormqr(side, how, &m, &n, &r, NULL, &lda, NULL, NULL, &ldc, answer, &lwork,
          &info, 1, 1);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    if (work == NULL) return false;
    for (size_t i = 0; i < call->matrix_count; i++)
        ormqr(side, how, &m, &n, &r, tow_lapack_argument(call, 0, i), &lda,
              tow_lapack_argument(call, 1, i), tow_lapack_result(call, 0, i),
              &ldc, work, &lwork, &info, 1, 1);
    free(work);
    return true;
}

const tow_lapack_routine_t tow_lapack_ormqr = {
    .names = {"ormqr", "unmqr"},
    .buffers = {"Tpq Tr Tmn > Tmn=2", "Tpq Tr Tmn > Tmn=2"},
    .run = run_ormqr,
};
