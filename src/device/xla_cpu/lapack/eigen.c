/* Eigenvalues, and related decompositions. */
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/lapack/routines_impl.h"

/* --- Of symmetric and Hermitian matrices ---------------------------------- */

typedef void syevd_fn(const char *job, const char *triangle, const int32_t *n,
                      void *a, const int32_t *lda, void *w, void *work,
                      const int32_t *lwork, int32_t *iwork,
                      const int32_t *liwork, int32_t *info, size_t length_1,
                      size_t length_2);
typedef void heevd_fn(const char *job, const char *triangle, const int32_t *n,
                      void *a, const int32_t *lda, void *w, void *work,
                      const int32_t *lwork, void *rwork, const int32_t *lrwork,
                      int32_t *iwork, const int32_t *liwork, int32_t *info,
                      size_t length_1, size_t length_2);

typedef struct syevd {
    char job, triangle;
    void *work, *rwork; /* owned */
    int32_t *iwork;     /* owned */
    int32_t lwork, lrwork, liwork;
} syevd_t;

static void syevd(const tow_lapack_call_t *call, const syevd_t *with, void *a,
                  void *w, int32_t *info)
{
    int32_t n = tow_lapack_dim(call, 'n'), lda = tow_lapack_leading(n);
    if (call->is_complex)
        ((heevd_fn *)call->routine)(&with->job, &with->triangle, &n, a, &lda, w,
                                    with->work, &with->lwork, with->rwork,
                                    &with->lrwork, with->iwork, &with->liwork,
                                    info, 1, 1);
    else
        ((syevd_fn *)call->routine)(&with->job, &with->triangle, &n, a, &lda, w,
                                    with->work, &with->lwork, with->iwork,
                                    &with->liwork, info, 1, 1);
}

static bool prepare_syevd(tow_lapack_call_t *call, syevd_t *with)
{
    double work[2] = {0}, rwork[2] = {0};
    int32_t iwork = 1, info;
    syevd_t asks = {.job = with->job, .triangle = with->triangle};
    asks.work = work;
    asks.rwork = rwork;
    asks.iwork = &iwork;
    asks.lwork = asks.lrwork = asks.liwork = -1;
    syevd(call, &asks, NULL, NULL, &info);
    if (!tow_lapack_wanted(call, work, &with->lwork) ||
        !tow_lapack_wanted(call, rwork, &with->lrwork))
        return false;
    with->liwork = iwork > 1 ? iwork : 1;
    with->work =
        tow_lapack_scratch(call, (size_t)with->lwork, call->element_size);
    with->rwork =
        tow_lapack_scratch(call, (size_t)with->lrwork, call->real_size);
    with->iwork =
        tow_lapack_scratch(call, (size_t)with->liwork, sizeof(*with->iwork));
    return with->work != NULL && with->rwork != NULL && with->iwork != NULL;
}

/* Only the triangle is read, so only it is checked. */
static bool triangle_is_finite(const tow_lapack_call_t *call, const char *a,
                               char triangle)
{
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    bool is_finite = true;
    for (size_t j = 0; j < n; j++) {
        size_t first = triangle == 'L' ? j : 0;
        size_t count = triangle == 'L' ? n - j : j + 1;
        is_finite &= tow_lapack_is_finite(
            call, a + (j * n + first) * call->element_size, count);
    }
    return is_finite;
}

static bool run_syevd(tow_lapack_call_t *call)
{
    syevd_t with = {0};
    if (!tow_lapack_letter(call, "mode", "NV", &with.job) ||
        !tow_lapack_letter(call, "uplo", "LU", &with.triangle))
        return false;
    bool is_well = prepare_syevd(call, &with);
    for (size_t i = 0; is_well && i < call->matrix_count; i++) {
        void *a = tow_lapack_result(call, 0, i);
        int32_t *info = tow_lapack_result(call, 2, i);
        *info = TOW_LAPACK_NOT_FINITE;
        if (triangle_is_finite(call, a, with.triangle))
            syevd(call, &with, a, tow_lapack_result(call, 1, i), info);
    }
    free(with.iwork);
    free(with.rwork);
    free(with.work);
    return is_well;
}

const tow_lapack_routine_t tow_lapack_syevd = {
    .names = {"syevd", "heevd"},
    .buffers = {"Tnn > Tnn=0 Rn I", "Tnn > Tnn=0 Rn I"},
    .run = run_syevd,
};

/* --- Of any matrices ------------------------------------------------------ */

typedef void sgeev_fn(const char *left, const char *right, const int32_t *n,
                      void *a, const int32_t *lda, void *wr, void *wi, void *vl,
                      const int32_t *ldvl, void *vr, const int32_t *ldvr,
                      void *work, const int32_t *lwork, int32_t *info,
                      size_t length_1, size_t length_2);
typedef void cgeev_fn(const char *left, const char *right, const int32_t *n,
                      void *a, const int32_t *lda, void *w, void *vl,
                      const int32_t *ldvl, void *vr, const int32_t *ldvr,
                      void *work, const int32_t *lwork, void *rwork,
                      int32_t *info, size_t length_1, size_t length_2);

/* Results: the eigenvalues (of real matrices real and imaginary parts), left
 * and right eigenvectors, info. */
typedef struct geev {
    char left, right;
    char *a;       /* owned: the argument is left as it is */
    char *vl, *vr; /* owned: of real matrices, packed */
    void *work;    /* owned */
    void *rwork;   /* owned */
    int32_t lwork;
} geev_t;

static void geev(const tow_lapack_call_t *call, const geev_t *with, void *w,
                 void *wi, void *vl, void *vr, int32_t *info)
{
    int32_t n = tow_lapack_dim(call, 'n'), ld = tow_lapack_leading(n);
    if (call->is_complex)
        ((cgeev_fn *)call->routine)(&with->left, &with->right, &n, with->a, &ld,
                                    w, vl, &ld, vr, &ld, with->work,
                                    &with->lwork, with->rwork, info, 1, 1);
    else
        ((sgeev_fn *)call->routine)(&with->left, &with->right, &n, with->a, &ld,
                                    w, wi, vl, &ld, vr, &ld, with->work,
                                    &with->lwork, info, 1, 1);
}

static bool prepare_geev(tow_lapack_call_t *call, geev_t *with)
{
    double work[2] = {0},
           unused[2] = {0}; /* Queries other routines, which write. */
    int32_t info;
    geev_t asks = {.left = with->left, .right = with->right, .lwork = -1};
    asks.work = work;
    asks.rwork = unused;
    geev(call, &asks, unused, unused, unused, unused, &info);
    if (!tow_lapack_wanted(call, work, &with->lwork)) return false;
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    size_t size = call->element_size;
    with->a = tow_lapack_scratch(call, n * n, size);
    with->vl = tow_lapack_scratch(call, n * n, size);
    with->vr = tow_lapack_scratch(call, n * n, size);
    with->work = tow_lapack_scratch(call, (size_t)with->lwork, size);
    with->rwork = tow_lapack_scratch(call, 2 * n, call->real_size);
    return with->a != NULL && with->vl != NULL && with->vr != NULL &&
           with->work != NULL && with->rwork != NULL;
}

static void free_geev(geev_t *with)
{
    free(with->rwork);
    free(with->work);
    free(with->vr);
    free(with->vl);
    free(with->a);
}

/* A pair of conjugate eigenvalues has the real part of its first vector in one
 * column and the imaginary part in the next. */
#define DEFINE_UNPACK(name, real_t)                                           \
    static void name(size_t n, const real_t *imaginary, const real_t *packed, \
                     real_t *vectors)                                         \
    {                                                                         \
        for (size_t j = 0; j < n; j++) {                                      \
            bool is_pair = imaginary[j] != 0 && j + 1 < n;                    \
            const real_t *re = packed + j * n, *im = re + n;                  \
            real_t *to = vectors + 2 * j * n, *mirrored = to + 2 * n;         \
            for (size_t i = 0; i < n; i++) {                                  \
                to[2 * i] = re[i];                                            \
                to[2 * i + 1] = is_pair ? im[i] : 0;                          \
                if (!is_pair) continue;                                       \
                mirrored[2 * i] = re[i];                                      \
                mirrored[2 * i + 1] = -im[i];                                 \
            }                                                                 \
            if (is_pair) j++;                                                 \
        }                                                                     \
    }
DEFINE_UNPACK(unpack_single, float)
DEFINE_UNPACK(unpack_double, double)

static void unpack(const tow_lapack_call_t *call, const void *imaginary,
                   const void *packed, void *vectors)
{
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    if (call->real_size == sizeof(float))
        unpack_single(n, imaginary, packed, vectors);
    else
        unpack_double(n, imaginary, packed, vectors);
}

static void run_geev_once(const tow_lapack_call_t *call, const geev_t *with,
                          size_t index, int32_t *info)
{
    void *w = tow_lapack_result(call, 0, index);
    if (call->is_complex) {
        geev(call, with, w, NULL, tow_lapack_result(call, 1, index),
             tow_lapack_result(call, 2, index), info);
        return;
    }
    void *wi = tow_lapack_result(call, 1, index);
    geev(call, with, w, wi, with->vl, with->vr, info);
    if (*info != 0) return;
    if (with->left == 'V')
        unpack(call, wi, with->vl, tow_lapack_result(call, 2, index));
    if (with->right == 'V')
        unpack(call, wi, with->vr, tow_lapack_result(call, 3, index));
}

static bool run_geev(tow_lapack_call_t *call)
{
    geev_t with = {0};
    if (!tow_lapack_letter(call, "compute_left", "NV", &with.left) ||
        !tow_lapack_letter(call, "compute_right", "NV", &with.right))
        return false;
    bool is_well = prepare_geev(call, &with);
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    for (size_t i = 0; is_well && i < call->matrix_count; i++) {
        const void *a = tow_lapack_argument(call, 0, i);
        int32_t *info = tow_lapack_result(call, call->is_complex ? 3 : 4, i);
        *info = TOW_LAPACK_NOT_FINITE;
        if (!tow_lapack_is_finite(call, a, n * n)) continue;
        memcpy(with.a, a, n * n * call->element_size);
        run_geev_once(call, &with, i, info);
    }
    free_geev(&with);
    return is_well;
}

const tow_lapack_routine_t tow_lapack_geev = {
    .names = {"geev", "geev"},
    .buffers = {"Tnn > Tn Tn Cnn Cnn I", "Tnn > Tn Tnn Tnn I"},
    .run = run_geev,
};

/* --- Schur ---------------------------------------------------------------- */

typedef void sgees_fn(const char *job, const char *sort, void *select,
                      const int32_t *n, void *a, const int32_t *lda,
                      int32_t *sdim, void *wr, void *wi, void *vs,
                      const int32_t *ldvs, void *work, const int32_t *lwork,
                      int32_t *bwork, int32_t *info, size_t length_1,
                      size_t length_2);
typedef void cgees_fn(const char *job, const char *sort, void *select,
                      const int32_t *n, void *a, const int32_t *lda,
                      int32_t *sdim, void *w, void *vs, const int32_t *ldvs,
                      void *work, const int32_t *lwork, void *rwork,
                      int32_t *bwork, int32_t *info, size_t length_1,
                      size_t length_2);

/* Results: the Schur form, its vectors, the eigenvalues (of real matrices real
 * and imaginary parts), how many were sorted to the front, info. */
typedef struct gees {
    char job;
    void *work, *rwork; /* owned */
    int32_t lwork;
} gees_t;

static void gees(const tow_lapack_call_t *call, const gees_t *with, void *a,
                 void *vs, void *w, void *wi, int32_t *sdim, int32_t *info)
{
    int32_t n = tow_lapack_dim(call, 'n'), ld = tow_lapack_leading(n);
    int32_t bwork = 0;
    if (call->is_complex)
        ((cgees_fn *)call->routine)(&with->job, "N", NULL, &n, a, &ld, sdim, w,
                                    vs, &ld, with->work, &with->lwork,
                                    with->rwork, &bwork, info, 1, 1);
    else
        ((sgees_fn *)call->routine)(&with->job, "N", NULL, &n, a, &ld, sdim, w,
                                    wi, vs, &ld, with->work, &with->lwork,
                                    &bwork, info, 1, 1);
}

static bool prepare_gees(tow_lapack_call_t *call, gees_t *with)
{
    double work[2] = {0}, unused[2] = {0};
    int32_t sdim, info;
    gees_t asks = {.job = with->job, .work = work, .lwork = -1};
    asks.rwork = unused;
    gees(call, &asks, unused, unused, unused, unused, &sdim, &info);
    if (!tow_lapack_wanted(call, work, &with->lwork)) return false;
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    with->work =
        tow_lapack_scratch(call, (size_t)with->lwork, call->element_size);
    with->rwork = tow_lapack_scratch(call, n, call->real_size);
    return with->work != NULL && with->rwork != NULL;
}

static void run_gees_once(const tow_lapack_call_t *call, const gees_t *with,
                          size_t index)
{
    size_t n = (size_t)tow_lapack_dim(call, 'n');
    size_t values = call->is_complex ? 1 : 2;
    void *a = tow_lapack_result(call, 0, index);
    int32_t *info = tow_lapack_result(call, values + 3, index);
    *info = TOW_LAPACK_NOT_FINITE;
    if (!tow_lapack_is_finite(call, a, n * n)) return;
    gees(call, with, a, tow_lapack_result(call, 1, index),
         tow_lapack_result(call, 2, index),
         call->is_complex ? NULL : tow_lapack_result(call, 3, index),
         tow_lapack_result(call, values + 2, index), info);
}

static bool run_gees(tow_lapack_call_t *call)
{
    gees_t with = {0};
    char sort; /* By a function of the caller's, which cannot come with it. */
    if (!tow_lapack_letter(call, "mode", "NV", &with.job) ||
        !tow_lapack_letter(call, "sort", "N", &sort))
        return false;
    bool is_well = prepare_gees(call, &with);
    for (size_t i = 0; is_well && i < call->matrix_count; i++)
        run_gees_once(call, &with, i);
    free(with.rwork);
    free(with.work);
    return is_well;
}

const tow_lapack_routine_t tow_lapack_gees = {
    .names = {"gees", "gees"},
    .buffers = {"Tnn > Tnn=0 Tnn Tn Tn I I", "Tnn > Tnn=0 Tnn Tn I I"},
    .run = run_gees,
};

/* --- To Hessenberg and to tridiagonal form -------------------------------- */

typedef void gehrd_fn(const int32_t *n, const int32_t *low, const int32_t *high,
                      void *a, const int32_t *lda, void *tau, void *work,
                      const int32_t *lwork, int32_t *info);

static bool run_gehrd(tow_lapack_call_t *call)
{
    int32_t n = tow_lapack_dim(call, 'n'), low, high;
    if (!tow_lapack_number(call, "low", &low) ||
        !tow_lapack_number(call, "high", &high))
        return false;
    if (n == 0) return true;
    if (low < 1 || high < low || high > n)
        return tow_lapack_fail(call, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                               "rows %d to %d of %d", low, high, n);
    gehrd_fn *gehrd = (gehrd_fn *)call->routine;
    int32_t lda = tow_lapack_leading(n), lwork = -1, info;
    double answer[2] = {0};
    gehrd(&n, &low, &high, NULL, &lda, NULL, answer, &lwork, &info);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    if (work == NULL) return false;
    for (size_t i = 0; i < call->matrix_count; i++)
        gehrd(&n, &low, &high, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_result(call, 1, i), work, &lwork,
              tow_lapack_result(call, 2, i));
    free(work);
    return true;
}

const tow_lapack_routine_t tow_lapack_gehrd = {
    .names = {"gehrd", "gehrd"},
    .buffers = {"Tnn > Tnn=0 Th I", "Tnn > Tnn=0 Th I"},
    .run = run_gehrd,
};

typedef void sytrd_fn(const char *triangle, const int32_t *n, void *a,
                      const int32_t *lda, void *d, void *e, void *tau,
                      void *work, const int32_t *lwork, int32_t *info,
                      size_t length);

static bool run_sytrd(tow_lapack_call_t *call)
{
    char triangle;
    if (!tow_lapack_letter(call, "uplo", "LU", &triangle)) return false;
    sytrd_fn *sytrd = (sytrd_fn *)call->routine;
    int32_t n = tow_lapack_dim(call, 'n'), lda = tow_lapack_leading(n);
    int32_t lwork = -1, info;
    double answer[2] = {0};
    sytrd(&triangle, &n, NULL, &lda, NULL, NULL, NULL, answer, &lwork, &info,
          1);
    if (!tow_lapack_wanted(call, answer, &lwork)) return false;
    void *work = tow_lapack_scratch(call, (size_t)lwork, call->element_size);
    if (work == NULL) return false;
    for (size_t i = 0; i < call->matrix_count; i++)
        sytrd(&triangle, &n, tow_lapack_result(call, 0, i), &lda,
              tow_lapack_result(call, 1, i), tow_lapack_result(call, 2, i),
              tow_lapack_result(call, 3, i), work, &lwork,
              tow_lapack_result(call, 4, i), 1);
    free(work);
    return true;
}

const tow_lapack_routine_t tow_lapack_sytrd = {
    .names = {"sytrd", "hetrd"},
    .buffers = {"Tnn > Tnn=0 Rn Rh Th I", "Tnn > Tnn=0 Rn Rh Th I"},
    .run = run_sytrd,
};
