/* Test library of this folder: a fixture of slices and functions, programs from
 * text, and random programs. For test programs only. */
#ifndef TOW_IR_IR_TESTING_IMPL_H_
#define TOW_IR_IR_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "ir/lower.h"

static inline void must(tow_status_t status)
{
    if (status == TOW_OK) return;
    print_error("%s\n", tow_status_message(status));
    tow_status_release(status);
    fail();
}

static inline void must_fail(tow_status_t status, tow_code_t code,
                             const char *message)
{
    assert_int_equal(tow_status_code(status), code);
    assert_string_equal(tow_status_message(status), message);
    tow_status_release(status);
}

/* -- Random shardings ----------------------------------------------------- */

tow_sharding_t ir_random_sharding_of(tow_random_t *random, uint32_t rank,
                                     size_t *out_devices);

tow_sharding_t ir_random_sharding(tow_random_t *random, size_t *out_devices);

static inline tow_sharding_t sharding_of(const char *text)
{
    tow_sharding_t sharding;
    must(tow_sharding_parse(text, strlen(text), &sharding));
    return sharding;
}

static inline tow_shape_t shape_of(const char *text)
{
    tow_shape_t shape;
    must(tow_shape_parse(text, &shape));
    return shape;
}

/* -- Fixture --------------------------------------------------------------- */

#define TEST_ARRAY(type_, size, width)                       \
    {                                                        \
        .shape = {.type = type_, .rank = 1, .dims = {size}}, \
        .bytes = size * width                                \
    }
#define TEST_F4 TEST_ARRAY(TOW_TYPE_F32, 4, 4)

/* All arrays are f32[4] of 16 bytes, except SPLIT's second result. */
typedef enum test_function {
    TEST_INCREMENT = 1, /* (a) -> a, which it donates */
    TEST_PLAIN,         /* (a) -> b, with 100 temporary bytes */
    TEST_ADD,           /* (a, b) -> c */
    TEST_SPLIT,         /* (a) -> (b, s32[2]) */
    TEST_INSIST,        /* (a) -> a, which must be donated */
    TEST_SOURCE,        /* () -> a */
    TEST_SWAP,          /* (a, b) -> (a, b), donates both */
    TEST_UNKNOWN,       /* unknown arguments */
    TEST_HUGE,          /* () -> 2^63 - 1 bytes */
    TEST_HOST,          /* (a) -> b, a host function */
    TEST_FILTER,        /* (a) -> f32[<=4], a host function */
    TEST_PAD,           /* (f32[<=4]) -> b, a host function */
    TEST_FUNCTION_COUNT,
} test_function_t;

const tow_signature_t *ir_test_signature(size_t function);

/* Slices 1 and 2 with equal numbers of devices; all functions are compiled for
 * that number. */
typedef struct ir_fixture {
    size_t device_count;
    tow_slice_id_t here; /* the local slice; none: both are local */
    tow_signature_t functions[TEST_FUNCTION_COUNT];
    tow_lower_scope_t scope;
} ir_fixture_t;

void ir_fixture_init(ir_fixture_t *fixture, size_t device_count);

/* -- Programs -------------------------------------------------------------- */

tow_graph_t *ir_program_of(const char *text);

void ir_assert_same_program(const tow_graph_t *a, const tow_graph_t *b);

/* Well formed, and almost never valid. */
tow_graph_t *ir_random_malformed(tow_random_t *random);

#define RANDOM_NODES_MAX 64
/* A program that verifies: at most RANDOM_NODES_MAX nodes of two slices
 * in random order, so that a node may come before its inputs. */
tow_graph_t *ir_random_program(tow_random_t *random);

#endif /* TOW_IR_IR_TESTING_IMPL_H_ */
