/* The handlers with call frames of our own: what they compute, and that nothing
 * that a program can say makes them touch a byte which is not theirs. */
#include "device/xla_cpu/lapack/lapack.h"

#include <complex.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/testing.h"
#include "device/xla_cpu/lapack/library_impl.h"

/* --- An XLA to be called by ----------------------------------------------- */

struct XLA_FFI_Error {
    XLA_FFI_Error_Code code;
    char message[512];
};

static XLA_FFI_Error *error_create(XLA_FFI_Error_Create_Args *args)
{
    XLA_FFI_Error *error = calloc(1, sizeof(*error));
    assert_non_null(error);
    error->code = args->errc;
    snprintf(error->message, sizeof(error->message), "%s", args->message);
    return error;
}

static const XLA_FFI_Api API = {.struct_size = XLA_FFI_Api_STRUCT_SIZE,
                                .XLA_FFI_Error_Create = error_create};

/* --- Calls by description ------------------------------------------------- */

#define BUFFERS_MAX 9
#define GUARD_BYTES 64
#define GUARD_VALUE 0xa5

/* "T243 > T243 I23 I2": types as in call_impl.h, and the digits are the
 * dimensions. Attributes: "uplo=L" a letter, "left=+" true, "low=1" a number.
 */
typedef struct subject {
    const char *names[2]; /* without lapack_ and _ffi: real, complex */
    const char *buffers[2];
    const char *attributes;
} subject_t;

static const subject_t SUBJECTS[] = {
    {{"getrf", "getrf"}, {"T243 > T243 I23 I2", "T243 > T243 I23 I2"}, ""},
    {{"potrf", "potrf"}, {"T233 > T233 I2", "T233 > T233 I2"}, "uplo=L"},
    {{"geqrf", "geqrf"}, {"T234 > T234 T23", "T234 > T234 T23"}, ""},
    {{"geqp3", "geqp3"},
     {"T243 I23 > T243 I23 T23", "T243 I23 > T243 I23 T23"},
     ""},
    {{"orgqr", "ungqr"}, {"T243 T22 > T243", "T243 T22 > T243"}, ""},
    {{"ormqr", "unmqr"},
     {"T253 T22 T254 > T254", "T253 T22 T254 > T254"},
     "left=+ transpose=+"},
    {{"trsm", "trsm"},
     {"T244 T243 > T243", "T244 T243 > T243"},
     "diag=N side=L trans_x=C uplo=U"},
    {{"gtsv", "gtsv"},
     {"T24 T24 T24 T243 > T24 T24 T24 T243 I2",
      "T24 T24 T24 T243 > T24 T24 T24 T243 I2"},
     ""},
    {{"syevd", "heevd"},
     {"T255 > T255 R25 I2", "T255 > T255 R25 I2"},
     "mode=V uplo=L"},
    {{"geev", "geev"},
     {"T255 > T25 T25 C255 C255 I2", "T255 > T25 T255 T255 I2"},
     "compute_left=V compute_right=V"},
    {{"gees", "gees"},
     {"T255 > T255 T255 T25 T25 I2 I2", "T255 > T255 T255 T25 I2 I2"},
     "mode=V sort=N"},
    {{"gehrd", "gehrd"},
     {"T255 > T255 T24 I2", "T255 > T255 T24 I2"},
     "high=5 low=1"},
    {{"sytrd", "hetrd"},
     {"T255 > T255 R25 R24 T24 I2", "T255 > T255 R25 R24 T24 I2"},
     "uplo=U"},
    {{"gesdd", "gesdd"},
     {"T254 > T254 R24 T255 T244 I2", "T254 > T254 R24 T255 T244 I2"},
     "mode=A"},
    {{"gesvd", "gesvd"},
     {"T246 > T246 R24 T244 T246 I2", "T246 > T246 R24 T244 T246 I2"},
     "mode=S"},
};

typedef struct call {
    XLA_FFI_CallFrame frame;
    XLA_FFI_Buffer buffers[BUFFERS_MAX];
    int64_t dims[BUFFERS_MAX][4];
    size_t sizes[BUFFERS_MAX];
    size_t count, argument_count;
    void *pointers[BUFFERS_MAX];
    XLA_FFI_ByteSpan names[4];
    XLA_FFI_ByteSpan *name_pointers[4];
    XLA_FFI_AttrType attribute_types[4];
    XLA_FFI_Scalar scalars[4];
    void *scalar_pointers[4];
    int32_t numbers[4];
} call_t;

static const XLA_FFI_DataType TYPES[4] = {
    XLA_FFI_DataType_F32, XLA_FFI_DataType_F64, XLA_FFI_DataType_C64,
    XLA_FFI_DataType_C128};

static XLA_FFI_DataType type_of(char kind, size_t element)
{
    switch (kind) {
    case 'R': return TYPES[element & 1];
    case 'C': return TYPES[2 + (element & 1)];
    case 'I': return XLA_FFI_DataType_S32;
    default: return TYPES[element];
    }
}

static size_t size_of(XLA_FFI_DataType type)
{
    switch (type) {
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_F32: return 4;
    case XLA_FFI_DataType_C128: return 16;
    default: return 8;
    }
}

static const char *add_buffer(call_t *call, const char *what, size_t element)
{
    XLA_FFI_Buffer *buffer = &call->buffers[call->count];
    *buffer = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
                               .dtype = type_of(*what, element),
                               .dims = call->dims[call->count]};
    for (what++; *what >= '0' && *what <= '9'; what++)
        buffer->dims[buffer->rank++] = *what - '0';
    call->pointers[call->count++] = buffer;
    return what;
}

static void add_attributes(call_t *call, const char *text)
{
    XLA_FFI_Attrs *attrs = &call->frame.attrs;
    while (*text != '\0') {
        size_t at = (size_t)attrs->size++;
        size_t length = strcspn(text, "=");
        char value = text[length + 1];
        call->names[at] = (XLA_FFI_ByteSpan){text, length};
        call->name_pointers[at] = &call->names[at];
        call->attribute_types[at] = XLA_FFI_AttrType_SCALAR;
        call->scalars[at].dtype = value == '+' ? XLA_FFI_DataType_PRED
                                  : value >= '0' && value <= '9'
                                      ? XLA_FFI_DataType_S32
                                      : XLA_FFI_DataType_U8;
        call->numbers[at] = value >= '0' && value <= '9' ? value - '0' : value;
        call->scalars[at].value = &call->numbers[at];
        call->scalar_pointers[at] = &call->scalars[at];
        text += length + 2;
        text += strspn(text, " ");
    }
    attrs->types = call->attribute_types;
    attrs->names = call->name_pointers;
    attrs->attrs = call->scalar_pointers;
}

static void describe(call_t *call, const char *buffers, const char *attributes,
                     size_t element)
{
    *call = (call_t){
        .frame = {.api = &API, .stage = XLA_FFI_ExecutionStage_EXECUTE}};
    for (; *buffers != '\0'; buffers += strspn(buffers, " ")) {
        if (*buffers == '>') {
            call->argument_count = call->count;
            buffers++;
            continue;
        }
        buffers = add_buffer(call, buffers, element);
    }
    add_attributes(call, attributes);
}

static XLA_FFI_ArgType ARGUMENT_TYPES[BUFFERS_MAX] = {1, 1, 1, 1, 1,
                                                      1, 1, 1, 1};
static XLA_FFI_RetType RESULT_TYPES[BUFFERS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Memory of exactly the size that the dimensions say, with a guard behind it.
 */
static void fill(call_t *call)
{
    for (size_t i = 0; i < call->count; i++) {
        XLA_FFI_Buffer *buffer = &call->buffers[i];
        size_t size = size_of(buffer->dtype);
        for (int64_t j = 0; j < buffer->rank; j++)
            size *= (size_t)buffer->dims[j];
        call->sizes[i] = size;
        buffer->data = malloc(size + GUARD_BYTES);
        assert_non_null(buffer->data);
        memset(buffer->data, i < call->argument_count ? 0 : 0x77, size);
        memset((char *)buffer->data + size, GUARD_VALUE, GUARD_BYTES);
    }
    call->frame.args = (XLA_FFI_Args){.size = (int64_t)call->argument_count,
                                      .types = ARGUMENT_TYPES,
                                      .args = call->pointers};
    call->frame.rets =
        (XLA_FFI_Rets){.size = (int64_t)(call->count - call->argument_count),
                       .types = RESULT_TYPES,
                       .rets = call->pointers + call->argument_count};
}

static void set_element(XLA_FFI_Buffer *buffer, size_t at, double value)
{
    switch (buffer->dtype) {
    case XLA_FFI_DataType_F32:
        ((float *)buffer->data)[at] = (float)value;
        break;
    case XLA_FFI_DataType_F64: ((double *)buffer->data)[at] = value; break;
    case XLA_FFI_DataType_C64:
        ((float complex *)buffer->data)[at] = (float)value;
        break;
    case XLA_FFI_DataType_C128:
        ((double complex *)buffer->data)[at] = value;
        break;
    default: break; /* Pivots stay 0. */
    }
}

/* Matrices with a heavy diagonal; vectors are all heavy. */
static void fill_values(call_t *call)
{
    for (size_t i = 0; i < call->argument_count; i++) {
        XLA_FFI_Buffer *buffer = &call->buffers[i];
        size_t rows = 0, columns = 1;
        if (buffer->rank == 3) rows = (size_t)buffer->dims[1];
        if (buffer->rank == 3) columns = (size_t)buffer->dims[2];
        size_t size = rows > 0 && columns > 0 ? rows * columns : 1;
        for (size_t j = 0; j < call->sizes[i] / size_of(buffer->dtype); j++) {
            bool is_heavy = j % size % (rows + 1) == 0;
            set_element(buffer, j,
                        0.25 * (double)((j * 7 + i) % 5) + 6 * is_heavy);
        }
    }
}

static void empty(call_t *call)
{
    for (size_t i = 0; i < call->count; i++) {
        const unsigned char *guard =
            (const unsigned char *)call->buffers[i].data + call->sizes[i];
        for (size_t j = 0; j < GUARD_BYTES; j++)
            assert_int_equal(guard[j], GUARD_VALUE);
        free(call->buffers[i].data);
    }
}

static XLA_FFI_Handler *handler_of(const subject_t *subject, size_t element)
{
    char name[32];
    int length = snprintf(name, sizeof(name), "lapack_%c%s_ffi",
                          "sdcz"[element], subject -> names[element >= 2]);
    XLA_FFI_Handler *handler = tow_lapack_handler(name, (size_t)length);
    assert_non_null(handler);
    return handler;
}

static bool is_refused(XLA_FFI_Error *error, const char *words)
{
    if (error == NULL) return false;
    assert_int_equal(error->code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    if (words != NULL) assert_non_null(strstr(error->message, words));
    free(error);
    return true;
}

static void need_the_library(void)
{
    if (tow_lapack_library_open() != NULL) tow_test_skip("skipped: no LAPACK");
}

/* --- Names ---------------------------------------------------------------- */

static void targets_are_those_and_no_others(void **state)
{
    (void)state;
    size_t count = 0;
    for (const char *name; (name = tow_lapack_target(count)) != NULL; count++)
        assert_non_null(tow_lapack_handler(name, strlen(name)));
    assert_int_equal(count, 15 * 4 + 1);
    static const char *const OTHERS[] = {"",
                                         "lapack_sgetrf",
                                         "lapack_xgetrf_ffi",
                                         "lapack_sgetrf_ffi2",
                                         "lapack_ssyevd",
                                         "lapack_cungqr_ff",
                                         "xla_ffi_python_cpu_callback"};
    for (size_t i = 0; i < TOW_COUNT_OF(OTHERS); i++)
        assert_null(tow_lapack_handler(OTHERS[i], strlen(OTHERS[i])));
}

static void handlers_say_for_which_interface_they_are(void **state)
{
    (void)state;
    XLA_FFI_Metadata metadata = {.traits = 7};
    XLA_FFI_Metadata_Extension extension = {
        .extension_base = {.type = XLA_FFI_Extension_Metadata},
        .metadata = &metadata};
    XLA_FFI_CallFrame frame = {.api = &API};
    frame.extension_start = &extension.extension_base;
    XLA_FFI_Handler *handler = handler_of(&SUBJECTS[0], 0);
    assert_null(handler(&frame));
    assert_int_equal(metadata.api_version.minor_version, XLA_FFI_API_MINOR);
    assert_int_equal(metadata.traits, 0);
    assert_null(tow_lapack_instantiate(&frame));
}

/* --- Values --------------------------------------------------------------- */

static void lu_of_a_small_matrix(void **state)
{
    (void)state;
    need_the_library();
    call_t call;
    describe(&call, "T22 > T22 I2 I", "", 1);
    fill(&call);
    static const double COLUMNS[] = {1, 3, 2, 4}; /* 1 2 / 3 4 */
    memcpy(call.buffers[0].data, COLUMNS, sizeof(COLUMNS));
    assert_null(handler_of(&SUBJECTS[0], 1)(&call.frame));
    const double *lu = call.buffers[1].data;
    const int32_t *pivots = call.buffers[2].data;
    assert_true(lu[0] == 3 && fabs(lu[1] - 1.0 / 3) < 1e-15 && lu[2] == 4 &&
                fabs(lu[3] - 2.0 / 3) < 1e-15);
    assert_true(pivots[0] == 2 && pivots[1] == 2);
    assert_int_equal(*(int32_t *)call.buffers[3].data, 0);
    empty(&call);
}

/* A turn by 90 degrees: a pair of eigenvalues, of which LAPACK packs the
 * vectors. */
static void eigenvectors_of_a_pair_are_unpacked(void **state)
{
    (void)state;
    need_the_library();
    call_t call;
    describe(&call, "T22 > T2 T2 C22 C22 I", "compute_left=N compute_right=V",
             0);
    fill(&call);
    static const float COLUMNS[] = {0, 1, -1, 0};
    memcpy(call.buffers[0].data, COLUMNS, sizeof(COLUMNS));
    assert_null(handler_of(&SUBJECTS[9], 0)(&call.frame));
    const float *imaginary = call.buffers[2].data;
    assert_true(fabsf(imaginary[0] - 1) < 1e-6 && imaginary[1] < 0);
    const float complex *left = call.buffers[3].data;
    const float complex *right = call.buffers[4].data;
    for (size_t j = 0; j < 2; j++) {
        float complex value = imaginary[j] * I;
        const float complex *v = right + 2 * j;
        assert_true(cabsf(-v[1] - value * v[0]) < 1e-6);
        assert_true(cabsf(v[0] - value * v[1]) < 1e-6);
        assert_true(left[2 * j] == 0 && left[2 * j + 1] == 0);
    }
    assert_memory_equal(call.buffers[0].data, COLUMNS, sizeof(COLUMNS));
    empty(&call);
}

static XLA_FFI_Handler *perturbed(void)
{
    static const char NAME[] = "tridiagonal_solve_perturbed_ffi";
    return tow_lapack_handler(NAME, sizeof(NAME) - 1);
}

static double complex element_at(const XLA_FFI_Buffer *buffer, size_t at)
{
    switch (buffer->dtype) {
    case XLA_FFI_DataType_F32: return ((const float *)buffer->data)[at];
    case XLA_FFI_DataType_F64: return ((const double *)buffer->data)[at];
    case XLA_FFI_DataType_C64: return ((const float complex *)buffer->data)[at];
    default: return ((const double complex *)buffer->data)[at];
    }
}

static void nearly_singular_systems_have_finite_solutions(void **state)
{
    (void)state;
    need_the_library();
    for (size_t element = 0; element < 4; element++) {
        call_t call;
        describe(&call, "T3 T3 T3 T31 > T31", "", element);
        fill(&call);
        for (size_t i = 0; i < 3; i++) { /* The diagonal is zeroes. */
            set_element(&call.buffers[0], i, 1);
            set_element(&call.buffers[2], i, 1);
            set_element(&call.buffers[3], i, i < 2);
        }
        assert_null(perturbed()(&call.frame));
        const XLA_FFI_Buffer *x = &call.buffers[4];
        for (size_t i = 0; i < 3; i++)
            assert_true(isfinite(cabs(element_at(x, i))));
        /* It is along the null vector. */
        assert_true(cabs(element_at(x, 0)) > 1e6);
        assert_true(cabs(element_at(x, 0) + element_at(x, 2)) < 10);
        empty(&call);
    }
}

/* Of row `row` of the matrix with the solution, column `column` of n. */
static double complex product_of(const call_t *call, size_t n, size_t row,
                                 size_t column)
{
    const XLA_FFI_Buffer *x = &call->buffers[4];
    size_t at = column * n + row;
    double complex sum = element_at(&call->buffers[1], row) * element_at(x, at);
    if (row > 0)
        sum += element_at(&call->buffers[0], row) * element_at(x, at - 1);
    if (row + 1 < n)
        sum += element_at(&call->buffers[2], row) * element_at(x, at + 1);
    return sum;
}

/* Rows are exchanged in one, for its diagonal is the smaller. */
static void complex_systems_of_three_diagonals_are_solved(void **state)
{
    (void)state;
    need_the_library();
    for (int i = 0; i < 2; i++) {
        call_t call;
        describe(&call, "T5 T5 T5 T52 > T52", "", 3);
        fill(&call);
        for (size_t j = 0; j < 4; j++) {
            double complex *elements = call.buffers[j].data;
            double size = j == 1 && i == 1 ? 0.1 : 1 + 3 * (j == 1);
            for (size_t k = 0; k < call.sizes[j] / sizeof(*elements); k++)
                elements[k] = size * cexp(I * (double)(j * 7 + k * k));
        }
        assert_null(perturbed()(&call.frame));
        for (size_t j = 0; j < 10; j++)
            assert_true(cabs(product_of(&call, 5, j % 5, j / 5) -
                             element_at(&call.buffers[3], j)) < 1e-13);
        empty(&call);
    }
}

/* Whatever stands there: it ends, and touches nothing else. */
static void complex_systems_of_any_values_end(void **state)
{
    (void)state;
    need_the_library();
    static const double VALUES[] = {0, 4e-310, 1e308, INFINITY, NAN, -1};
    for (size_t i = 0; i < 6 * 6 * 6 * 6; i++) {
        call_t call;
        describe(&call, "T3 T3 T3 T31 > T31", "", 2 + i % 2);
        fill(&call);
        for (size_t j = 0, rest = i; j < 4; j++, rest /= 6)
            for (size_t k = 0; k < 3; k++)
                set_element(&call.buffers[j], k, VALUES[(rest + k % 2) % 6]);
        assert_null(perturbed()(&call.frame));
        empty(&call);
    }
}

static int32_t info_of(const call_t *call, size_t matrix)
{
    return ((const int32_t *)call->buffers[call->count - 1].data)[matrix];
}

static bool has_info(const subject_t *subject)
{
    const char *buffers = subject->buffers[0];
    return strcmp(buffers + strlen(buffers) - 2, "I2") == 0;
}

static void all_routines_run_in_all_types(void **state)
{
    (void)state;
    need_the_library();
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++)
        for (size_t element = 0; element < 4; element++) {
            const subject_t *subject = &SUBJECTS[i];
            call_t call;
            describe(&call, subject->buffers[element >= 2], subject->attributes,
                     element);
            fill(&call);
            fill_values(&call);
            XLA_FFI_Error *error = handler_of(subject, element)(&call.frame);
            if (error != NULL) fail_msg("%s", error->message);
            if (has_info(subject)) {
                assert_int_equal(info_of(&call, 0), 0);
                assert_int_equal(info_of(&call, 1), 0);
            }
            empty(&call);
        }
}

static void iterations_are_spared_what_is_not_finite(void **state)
{
    (void)state;
    need_the_library();
    static const char *const ITERATING[] = {"syevd", "geev", "gees", "gesdd",
                                            "gesvd"};
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++) {
        const subject_t *subject = &SUBJECTS[i];
        bool iterates = false;
        for (size_t j = 0; j < TOW_COUNT_OF(ITERATING); j++)
            iterates |= strcmp(subject->names[0], ITERATING[j]) == 0;
        for (size_t element = 0; iterates && element < 4; element++) {
            call_t call;
            describe(&call, subject->buffers[element >= 2], subject->attributes,
                     element);
            fill(&call);
            fill_values(&call);
            double nan_double = NAN;
            float nan_single = NAN;
            if (element % 2 == 0)
                memcpy(call.buffers[0].data, &nan_single, sizeof(nan_single));
            else
                memcpy(call.buffers[0].data, &nan_double, sizeof(nan_double));
            assert_null(handler_of(subject, element)(&call.frame));
            assert_int_equal(info_of(&call, 0), -4);
            assert_int_equal(info_of(&call, 1), 0);
            empty(&call);
        }
    }
}

static void empty_batches_and_matrices_are_fine(void **state)
{
    (void)state;
    need_the_library();
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++) {
        call_t call;
        describe(&call, SUBJECTS[i].buffers[0], SUBJECTS[i].attributes, 1);
        for (size_t j = 0; j < call.count; j++)
            call.buffers[j].dims[0] = 0;
        fill(&call);
        assert_null(handler_of(&SUBJECTS[i], 1)(&call.frame));
        empty(&call);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++) {
        call_t call;
        describe(&call, SUBJECTS[i].buffers[0], SUBJECTS[i].attributes, 0);
        for (size_t j = 0; j < call.count; j++)
            for (int64_t k = 1; k < call.buffers[j].rank; k++)
                call.buffers[j].dims[k] = 0;
        fill(&call);
        assert_null(handler_of(&SUBJECTS[i], 0)(&call.frame));
        if (has_info(&SUBJECTS[i])) assert_int_equal(info_of(&call, 1), 0);
        empty(&call);
    }
}

/* --- Programs that are wrong ---------------------------------------------- */

/* Numbers of reflectors, and columns that no reflector is in. */
static bool may_differ(const subject_t *subject, size_t buffer, int64_t dim)
{
    if (strcmp(subject->names[0], "orgqr") == 0) return buffer == 1 && dim == 1;
    if (strcmp(subject->names[0], "ormqr") == 0)
        return (buffer == 0 && dim == 2) || (buffer == 1 && dim == 1);
    return false;
}

static void try_other_size(const subject_t *subject, size_t element,
                           size_t buffer, int64_t dim, int64_t by)
{
    call_t call;
    describe(&call, subject->buffers[element >= 2], subject->attributes,
             element);
    call.buffers[buffer].dims[dim] += by;
    fill(&call);
    fill_values(&call);
    bool refused = is_refused(handler_of(subject, element)(&call.frame), NULL);
    if (!refused && !may_differ(subject, buffer, dim))
        fail_msg("%s: buffer %zu, dimension %ld, by %ld", subject->names[0],
                 buffer, (long)dim, (long)by);
    empty(&call);
}

static void any_other_size_is_refused(void **state)
{
    (void)state;
    need_the_library();
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++)
        for (size_t element = 0; element < 4; element++) {
            call_t call;
            describe(&call, SUBJECTS[i].buffers[element >= 2], "", element);
            for (size_t j = 0; j < call.count; j++)
                for (int64_t k = 0; k < call.buffers[j].rank; k++)
                    for (int64_t by = -2; by <= 2; by++)
                        if (by != 0)
                            try_other_size(&SUBJECTS[i], element, j, k, by);
        }
}

static void any_other_type_rank_or_count_is_refused(void **state)
{
    (void)state;
    need_the_library();
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++) {
        const subject_t *subject = &SUBJECTS[i];
        call_t call;
        describe(&call, subject->buffers[0], subject->attributes, 1);
        fill(&call);
        XLA_FFI_Handler *handler = handler_of(subject, 1);
        for (size_t j = 0; j < call.count; j++) {
            XLA_FFI_Buffer was = call.buffers[j];
            call.buffers[j].dtype = XLA_FFI_DataType_S8;
            assert_true(is_refused(handler(&call.frame), "type"));
            call.buffers[j] = was;
            call.buffers[j].rank--;
            assert_true(is_refused(handler(&call.frame), NULL));
            call.buffers[j] = was;
        }
        call.frame.args.size--;
        assert_true(is_refused(handler(&call.frame), "arguments"));
        call.frame.args.size++;
        call.frame.rets.size--;
        assert_true(is_refused(handler(&call.frame), "results"));
        call.frame.rets.size++;
        empty(&call);
    }
}

static void any_other_attribute_is_refused(void **state)
{
    (void)state;
    need_the_library();
    for (size_t i = 0; i < TOW_COUNT_OF(SUBJECTS); i++) {
        const subject_t *subject = &SUBJECTS[i];
        call_t call;
        describe(&call, subject->buffers[0], subject->attributes, 0);
        fill(&call);
        XLA_FFI_Handler *handler = handler_of(subject, 0);
        for (int64_t j = 0; j < call.frame.attrs.size; j++) {
            int32_t was = call.numbers[j];
            if (call.scalars[j].dtype != XLA_FFI_DataType_PRED) {
                call.numbers[j] = 99;
                assert_true(is_refused(handler(&call.frame), NULL));
            }
            call.numbers[j] = was;
            XLA_FFI_DataType type = call.scalars[j].dtype;
            call.scalars[j].dtype = XLA_FFI_DataType_F64;
            assert_true(is_refused(handler(&call.frame), "attribute"));
            call.scalars[j].dtype = type;
        }
        empty(&call);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(targets_are_those_and_no_others),
              cmocka_unit_test(handlers_say_for_which_interface_they_are),
              cmocka_unit_test(lu_of_a_small_matrix),
              cmocka_unit_test(eigenvectors_of_a_pair_are_unpacked),
              cmocka_unit_test(nearly_singular_systems_have_finite_solutions),
              cmocka_unit_test(complex_systems_of_three_diagonals_are_solved),
              cmocka_unit_test(complex_systems_of_any_values_end),
              cmocka_unit_test(all_routines_run_in_all_types),
              cmocka_unit_test(iterations_are_spared_what_is_not_finite),
              cmocka_unit_test(empty_batches_and_matrices_are_fine),
              cmocka_unit_test(any_other_size_is_refused),
              cmocka_unit_test(any_other_type_rank_or_count_is_refused),
              cmocka_unit_test(any_other_attribute_is_refused))
