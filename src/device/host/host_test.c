#include "base/testing.h"

#include <elf.h>
#include <string.h>

#include "base/alloc.h"
#include "device/host/host.h"
#include "device/signature.h"

#define DEVICE_COUNT 4

/* (f32[4]) -> (f32[<=4, 2]). */
static tow_array_info_t input = {
    .shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {4}},
    .bytes = 16};
static tow_array_info_t output = {
    .shape = {.type = TOW_TYPE_F32, .rank = 2, .dims = {4, 2}},
    .bytes = 32,
    .bounds = 1};

static tow_signature_t sample(void)
{
    return (tow_signature_t){.name = "keep",
                             .is_host = true,
                             .replica_count = 1,
                             .partition_count = 2,
                             .argument_count = 1,
                             .arguments = &input,
                             .result_count = 1,
                             .results = &output};
}

/* The header of a shared object for this machine: that of this program, as a
 * shared object. */
static Elf64_Ehdr object(void)
{
    Elf64_Ehdr header = {.e_type = ET_DYN};
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
#ifdef __x86_64__
    header.e_machine = EM_X86_64;
#else
    header.e_machine = EM_AARCH64;
#endif
    return header;
}

static void expect(tow_status_t take_status, tow_code_t code, const char *words)
{
    if (tow_status_code(take_status) != code ||
        strstr(tow_status_message(take_status), words) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tow_code_name(code),
                 words, tow_code_name(tow_status_code(take_status)),
                 tow_status_message(take_status));
    tow_status_release(take_status);
}

/* -- Objects ----------------------------------------------------------------- */

static void code_is_a_shared_object_of_this_kind_of_machine(void **state)
{
    Elf64_Ehdr header = object();
    (void)state;
    expect(tow_host_code_check((tow_bytes_t){&header, sizeof(header)}),
           TOW_CODE_OK, "");
    header.e_machine = EM_RISCV;
    expect(tow_host_code_check((tow_bytes_t){&header, sizeof(header)}),
           TOW_INVALID_ARGUMENT, "this ELF file is not");
    header = object();
    header.e_type = ET_EXEC;
    expect(tow_host_code_check((tow_bytes_t){&header, sizeof(header)}),
           TOW_INVALID_ARGUMENT, "this ELF file is not");
}

static void bytes_that_are_no_object_are_refused(void **state)
{
    Elf64_Ehdr header = object();
    (void)state;
    expect(tow_host_code_check((tow_bytes_t){0}), TOW_INVALID_ARGUMENT,
           "these 0 bytes are not");
    expect(tow_host_code_check((tow_bytes_t){&header, sizeof(header) - 1}),
           TOW_INVALID_ARGUMENT, "are not");
    header.e_ident[1] = 'L';
    expect(tow_host_code_check((tow_bytes_t){&header, sizeof(header)}),
           TOW_INVALID_ARGUMENT, "are not");
}

/* -- Signatures -------------------------------------------------------------- */

static void signature_of_a_host_function_is_taken(void **state)
{
    const tow_signature_t signature = sample();
    (void)state;
    expect(tow_host_signature_check(&signature), TOW_CODE_OK, "");
}

static void signature_of_a_computation_is_refused(void **state)
{
    const tow_alias_t alias = {0};
    tow_signature_t wrong[] = {sample(), sample(), sample(), sample()};
    (void)state;
    wrong[0].is_host = false;
    wrong[1].name = "";
    wrong[2].replica_count = 2;
    wrong[3].aliases = &alias;
    wrong[3].alias_count = 1;
    for (size_t i = 0; i < TOW_COUNT_OF(wrong); i++)
        expect(tow_host_signature_check(&wrong[i]), TOW_INVALID_ARGUMENT,
               "not the signature of a host function");
}

static void signature_has_a_bound_on_its_arrays(void **state)
{
    static tow_array_info_t many[TOW_HOST_ARRAY_COUNT_MAX];
    tow_signature_t signature = sample();
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(many); i++)
        many[i] = input;
    signature.arguments = many;
    signature.argument_count = TOW_HOST_ARRAY_COUNT_MAX - 1;
    expect(tow_host_signature_check(&signature), TOW_CODE_OK, "");
    signature.argument_count++;
    expect(tow_host_signature_check(&signature), TOW_INVALID_ARGUMENT,
           "64 inputs and 1 outputs");
}

static void signature_with_bytes_that_its_shape_has_not_is_refused(void **state)
{
    tow_array_info_t wrong = input;
    tow_signature_t signature = sample();
    (void)state;
    wrong.bytes++;
    signature.results = &wrong;
    expect(tow_host_signature_check(&signature), TOW_INVALID_ARGUMENT,
           "output 0: 17 bytes declared for a shape of 16");
}

/* -- Code -------------------------------------------------------------------- */

/* Creates code from the arguments, for a worker with DEVICE_COUNT devices. */
static tow_status_t create(const uint32_t *devices, size_t device_count,
                           tow_host_code_t **out_code)
{
    static const uint32_t shards[DEVICE_COUNT + 1] = {1, 0};
    const tow_signature_t signature = sample();
    const Elf64_Ehdr header = object();
    void *packed, *bytes = tow_malloc(sizeof(header));
    size_t packed_size;
    expect(tow_signature_pack(&signature, &packed, &packed_size), TOW_CODE_OK,
           "");
    assert_non_null(bytes);
    memcpy(bytes, &header, sizeof(header));
    tow_status_t status = tow_host_code_create(
        &(tow_host_code_options_t){.take_bytes = bytes,
                                   .size = sizeof(header),
                                   .signature = {packed, packed_size},
                                   .devices = devices,
                                   .shards = shards,
                                   .device_count = device_count,
                                   .device_count_max = DEVICE_COUNT},
        out_code);
    tow_free(packed);
    return status;
}

static void code_keeps_copies_and_is_counted(void **state)
{
    uint32_t devices[] = {3, 1};
    tow_host_code_t *code;
    (void)state;
    expect(create(devices, 2, &code), TOW_CODE_OK, "");
    devices[0] = 0;
    assert_string_equal(code->signature.name, "keep");
    assert_int_equal(code->device_count, 2);
    assert_int_equal(code->devices[0], 3);
    assert_int_equal(code->shards[0], 1);
    tow_host_code_retain(code);
    tow_host_code_release(code);
    assert_int_equal(code->reference_count, 1);
    tow_host_code_release(code);
    tow_host_code_release(NULL);
}

static void code_on_devices_that_are_not_there_is_refused(void **state)
{
    const uint32_t devices[DEVICE_COUNT + 1] = {0, DEVICE_COUNT};
    tow_host_code_t *code;
    (void)state;
    expect(create(devices, 2, &code), TOW_INVALID_ARGUMENT, "device 4");
    assert_null(code);
    expect(create(devices, 0, &code), TOW_INVALID_ARGUMENT, "0 devices");
    expect(create(devices, DEVICE_COUNT + 1, &code), TOW_INVALID_ARGUMENT,
           "5 devices");
}

/* -- Outputs ----------------------------------------------------------------- */

static void dimension_with_a_bound_may_be_smaller_and_no_other(void **state)
{
    tow_host_code_t code = {.signature = sample()};
    tow_host_array_t array = {.shape = output.shape};
    tow_host_job_t job = {.code = &code, .outputs = &array};
    (void)state;
    expect(tow_host_accept_dims(&job, 0, (int64_t[]){3, 2}), TOW_CODE_OK, "");
    assert_int_equal(array.shape.dims[0], 3);
    assert_int_equal(array.shape.rank, 2);
    expect(tow_host_accept_dims(&job, 0, (int64_t[]){0, 2}), TOW_CODE_OK, "");
    expect(tow_host_accept_dims(&job, 0, (int64_t[]){5, 2}), TOW_OUT_OF_RANGE,
           "gave output 0 with 5 in dimension 0, where at most 4");
    expect(tow_host_accept_dims(&job, 0, (int64_t[]){-1, 2}), TOW_OUT_OF_RANGE,
           "with -1 in dimension 0");
    expect(tow_host_accept_dims(&job, 0, (int64_t[]){4, 1}), TOW_OUT_OF_RANGE,
           "with 1 in dimension 1, where 2");
}

TOW_TEST_MAIN(
    cmocka_unit_test(code_is_a_shared_object_of_this_kind_of_machine),
    cmocka_unit_test(bytes_that_are_no_object_are_refused),
    cmocka_unit_test(signature_of_a_host_function_is_taken),
    cmocka_unit_test(signature_of_a_computation_is_refused),
    cmocka_unit_test(signature_has_a_bound_on_its_arrays),
    cmocka_unit_test(signature_with_bytes_that_its_shape_has_not_is_refused),
    cmocka_unit_test(code_keeps_copies_and_is_counted),
    cmocka_unit_test(code_on_devices_that_are_not_there_is_refused),
    cmocka_unit_test(dimension_with_a_bound_may_be_smaller_and_no_other))
