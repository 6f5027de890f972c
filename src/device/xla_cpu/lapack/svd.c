/* Singular values, by either of LAPACK's two algorithms. */
#include <stdlib.h>

#include "device/xla_cpu/lapack/routines_impl.h"

typedef void sgesdd_fn(const char *job, const int32_t *m, const int32_t *n,
                       void *a, const int32_t *lda, void *s, void *u,
                       const int32_t *ldu, void *vt, const int32_t *ldvt,
                       void *work, const int32_t *lwork, int32_t *iwork,
                       int32_t *info, size_t length);
typedef void cgesdd_fn(const char *job, const int32_t *m, const int32_t *n,
                       void *a, const int32_t *lda, void *s, void *u,
                       const int32_t *ldu, void *vt, const int32_t *ldvt,
                       void *work, const int32_t *lwork, void *rwork,
                       int32_t *iwork, int32_t *info, size_t length);
typedef void sgesvd_fn(const char *job_u, const char *job_vt, const int32_t *m,
                       const int32_t *n, void *a, const int32_t *lda, void *s,
                       void *u, const int32_t *ldu, void *vt,
                       const int32_t *ldvt, void *work, const int32_t *lwork,
                       int32_t *info, size_t length_1, size_t length_2);
typedef void cgesvd_fn(const char *job_u, const char *job_vt, const int32_t *m,
                       const int32_t *n, void *a, const int32_t *lda, void *s,
                       void *u, const int32_t *ldu, void *vt,
                       const int32_t *ldvt, void *work, const int32_t *lwork,
                       void *rwork, int32_t *info, size_t length_1,
                       size_t length_2);

typedef enum {
    BY_QR,
    BY_DIVISION
} way_t;

/* Results: the overwritten matrix, s, u, vt, info. */
typedef struct svd {
    way_t way;
    char job; /* A: all vectors, S: as many as there are values, N: none */
    void *work, *rwork; /* owned */
    int32_t *iwork;     /* owned */
    int32_t lwork;
} svd_t;

static void gesdd(const tow_lapack_call_t *call, const svd_t *with, void *a,
                  void *s, void *u, void *vt, int32_t *info)
{
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(m);
    int32_t ldvt = tow_lapack_leading(tow_lapack_dim(call, 'v'));
    if (call->is_complex)
        ((cgesdd_fn *)call->routine)(&with->job, &m, &n, a, &lda, s, u, &lda,
                                     vt, &ldvt, with->work, &with->lwork,
                                     with->rwork, with->iwork, info, 1);
    else
        ((sgesdd_fn *)call->routine)(&with->job, &m, &n, a, &lda, s, u, &lda,
                                     vt, &ldvt, with->work, &with->lwork,
                                     with->iwork, info, 1);
}

static void gesvd(const tow_lapack_call_t *call, const svd_t *with, void *a,
                  void *s, void *u, void *vt, int32_t *info)
{
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    int32_t lda = tow_lapack_leading(m);
    int32_t ldvt = tow_lapack_leading(tow_lapack_dim(call, 'v'));
    if (call->is_complex)
        ((cgesvd_fn *)call->routine)(&with->job, &with->job, &m, &n, a, &lda, s,
                                     u, &lda, vt, &ldvt, with->work,
                                     &with->lwork, with->rwork, info, 1, 1);
    else
        ((sgesvd_fn *)call->routine)(&with->job, &with->job, &m, &n, a, &lda, s,
                                     u, &lda, vt, &ldvt, with->work,
                                     &with->lwork, info, 1, 1);
}

static void svd(const tow_lapack_call_t *call, const svd_t *with, void *a,
                void *s, void *u, void *vt, int32_t *info)
{
    if (with->way == BY_DIVISION)
        gesdd(call, with, a, s, u, vt, info);
    else
        gesvd(call, with, a, s, u, vt, info);
}

/* Reals for complex matrices, as the routines' descriptions say. */
static size_t rwork_count(const tow_lapack_call_t *call, const svd_t *with)
{
    size_t m = (size_t)tow_lapack_dim(call, 'm');
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    size_t least = m < n ? m : n, most = m < n ? n : m;
    if (!call->is_complex) return 0;
    if (with->way == BY_QR) return 5 * least;
    if (with->job == 'N') return 7 * least;
    size_t tall = 5 * least * least + 5 * least;
    size_t wide = 2 * most * least + 2 * least * least + least;
    return tall > wide ? tall : wide;
}

static bool prepare(tow_lapack_call_t *call, svd_t *with)
{
    double work[2] = {0},
           unused[2] = {0}; /* Queries other routines, which write. */
    int32_t info, unused_too[2];
    svd_t asks = {.way = with->way, .job = with->job, .lwork = -1};
    asks.work = work;
    asks.rwork = unused;
    asks.iwork = unused_too;
    svd(call, &asks, unused, unused, unused, unused, &info);
    if (!tow_lapack_wanted(call, work, &with->lwork)) return false;
    size_t k = (size_t)tow_lapack_dim(call, 'k');
    with->work =
        tow_lapack_scratch(call, (size_t)with->lwork, call->element_size);
    with->rwork =
        tow_lapack_scratch(call, rwork_count(call, with), call->real_size);
    with->iwork = tow_lapack_scratch(call, 8 * k, sizeof(*with->iwork));
    return with->work != NULL && with->rwork != NULL && with->iwork != NULL;
}

/* u has m rows, vt n columns; the job says how many of the others. Without
 * vectors either size will do, since nothing is written. */
static bool check_sides(tow_lapack_call_t *call, char job)
{
    int32_t k = tow_lapack_dim(call, 'k');
    int32_t u = tow_lapack_dim(call, 'u'), v = tow_lapack_dim(call, 'v');
    int32_t m = tow_lapack_dim(call, 'm'), n = tow_lapack_dim(call, 'n');
    if (job == 'N' || (job == 'S' && u == k && v == k) ||
        (job == 'A' && u == m && v == n))
        return true;
    return tow_lapack_fail(call, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                           "%d and %d vectors of a %d x %d matrix in mode %c",
                           u, v, m, n, job);
}

static void run_once(const tow_lapack_call_t *call, const svd_t *with,
                     size_t index)
{
    size_t count =
        (size_t)tow_lapack_dim(call, 'm') * (size_t)tow_lapack_dim(call, 'n');
    void *a = tow_lapack_result(call, 0, index);
    int32_t *info = tow_lapack_result(call, 4, index);
    *info = TOW_LAPACK_NOT_FINITE;
    if (!tow_lapack_is_finite(call, a, count)) return;
    svd(call, with, a, tow_lapack_result(call, 1, index),
        tow_lapack_result(call, 2, index), tow_lapack_result(call, 3, index),
        info);
}

static bool run(tow_lapack_call_t *call, way_t way)
{
    svd_t with = {.way = way};
    if (!tow_lapack_letter(call, "mode", "ASN", &with.job) ||
        !check_sides(call, with.job))
        return false;
    bool is_well = prepare(call, &with);
    for (size_t i = 0; is_well && i < call->matrix_count; i++)
        run_once(call, &with, i);
    free(with.iwork);
    free(with.rwork);
    free(with.work);
    return is_well;
}

static bool run_gesdd(tow_lapack_call_t *call)
{
    return run(call, BY_DIVISION);
}

static bool run_gesvd(tow_lapack_call_t *call)
{
    return run(call, BY_QR);
}

#define BUFFERS "Tmn > Tmn=0 Rk Tmu Tvn I"

const tow_lapack_routine_t tow_lapack_gesdd = {
    .names = {"gesdd", "gesdd"},
    .buffers = {BUFFERS, BUFFERS},
    .run = run_gesdd,
};

const tow_lapack_routine_t tow_lapack_gesvd = {
    .names = {"gesvd", "gesvd"},
    .buffers = {BUFFERS, BUFFERS},
    .run = run_gesvd,
};
