/* Times nanopb against protobuf-c on messages like those of Towpath's hot path,
 * and shows how each handles hostile bytes. One JSON line per result on
 * standard output; `value` is nanopb, `peer_value` protobuf-c with an arena. In
 * the cases named `checked`, tow_check runs before protobuf-c and enforces the
 * same limits as nanopb.
 *
 *     codec_bench [OPTIONS_FILE]
 *
 * OPTIONS_FILE holds serialised compile options of JAX; without it that case is
 * left out. */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pb_decode.h>
#include <pb_encode.h>
#include <protobuf-c/protobuf-c.h>

#include "codec.pb-c.h"
#include "codec.pb.h"
#include "wire/check.h"

enum {
    ROUNDS = 31,             /* odd, so that the median is a sample */
    ROUND_NS = 1500 * 1000,  /* per library; short against a time slice */
    FRAME_BYTES = 64 * 1024, /* a hostile message fills one control frame */
    ARENA_BYTES = 16 << 20,  /* large enough: the demand is reported */
    GRANT_IDS = 8,
    NODES = 64,
    NODE_IDS = 4,
};

/* ---- an arena for protobuf-c, and a counter for nanopb's realloc ---- */

typedef struct arena {
    ProtobufCAllocator allocator;
    uint8_t *base; /* owned; ARENA_BYTES */
    size_t used;
    size_t allocation_count;
} arena_t;

static arena_t arena;
static uint64_t realloc_count;
static uint64_t realloc_bytes;

/* The linker redirects nanopb's calls here (--wrap=realloc). */
void *__real_realloc(void *pointer, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

void *__wrap_realloc(void *pointer, size_t size)
{
    realloc_count++;
    realloc_bytes += size;
    return __real_realloc(pointer, size);
}

static void *arena_alloc(void *context, size_t size)
{
    arena_t *self = context;
    size_t rounded = (size + 15) & ~(size_t)15;
    if (rounded > ARENA_BYTES - self->used) return NULL;
    void *result = self->base + self->used;
    self->used += rounded;
    self->allocation_count++;
    return result;
}

static void arena_free(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

static void arena_reset(void)
{
    arena.used = 0;
    arena.allocation_count = 0;
}

static void fail(const char *what, const char *detail)
{
    fprintf(stderr, "codec_bench: %s: %s\n", what, detail);
    exit(1);
}

static void arena_init(void)
{
    arena.base = calloc(1, ARENA_BYTES);
    if (arena.base == NULL) fail("arena", "out of memory");
    arena.allocator = (ProtobufCAllocator){arena_alloc, arena_free, &arena};
}

/* ---- the messages, filled once for each library ---- */

static tow_codec_Grant grant;
static tow_codec_FixedGrant fixed_grant;
static tow_codec_Completion completion;
static tow_codec_Submission submission;
static tow_codec_StreamedSubmission streamed;
static tow_codec_HeapSubmission heap;
static tow_codec_Hello hello;

static Tow__Codec__Grant peer_grant = TOW__CODEC__GRANT__INIT;
static Tow__Codec__FixedGrant peer_fixed_grant = TOW__CODEC__FIXED_GRANT__INIT;
static Tow__Codec__Completion peer_completion = TOW__CODEC__COMPLETION__INIT;
static Tow__Codec__Submission peer_submission = TOW__CODEC__SUBMISSION__INIT;
static Tow__Codec__Hello peer_hello = TOW__CODEC__HELLO__INIT;
static Tow__Codec__Node peer_nodes[NODES];
static Tow__Codec__Node *peer_node_pointers[NODES];

/* Target of the streamed submission's nodes, in place of an arena. */
typedef struct node_sink {
    tow_codec_Node nodes[NODES];
    size_t count;
} node_sink_t;

static node_sink_t sink;

/* Ids of some 40 bits: a counter below an incarnation number. */
static uint64_t sample_id(uint64_t index)
{
    return (UINT64_C(0x5a) << 32) + index * 7919;
}

static void fill_grants(void)
{
    grant = (tow_codec_Grant){.program_id = sample_id(1),
                              .sequence = 1234567,
                              .ticket = 7654321,
                              .island = 3,
                              .gang_count = 200,
                              .buffer_ids_count = GRANT_IDS,
                              .name = "train_step"};
    for (size_t i = 0; i < GRANT_IDS; i++)
        grant.buffer_ids[i] = sample_id(i);
    peer_grant.program_id = grant.program_id;
    peer_grant.sequence = grant.sequence;
    peer_grant.ticket = grant.ticket;
    peer_grant.island = grant.island;
    peer_grant.gang_count = grant.gang_count;
    peer_grant.n_buffer_ids = GRANT_IDS;
    peer_grant.buffer_ids = grant.buffer_ids;
    peer_grant.name = grant.name;

    fixed_grant = (tow_codec_FixedGrant){.program_id = grant.program_id,
                                         .sequence = grant.sequence,
                                         .ticket = grant.ticket,
                                         .island = grant.island,
                                         .gang_count = grant.gang_count,
                                         .buffer_ids_count = GRANT_IDS,
                                         .name = "train_step"};
    memcpy(fixed_grant.buffer_ids, grant.buffer_ids, sizeof(grant.buffer_ids));
    peer_fixed_grant.program_id = grant.program_id;
    peer_fixed_grant.sequence = grant.sequence;
    peer_fixed_grant.ticket = grant.ticket;
    peer_fixed_grant.island = grant.island;
    peer_fixed_grant.gang_count = grant.gang_count;
    peer_fixed_grant.n_buffer_ids = GRANT_IDS;
    peer_fixed_grant.buffer_ids = grant.buffer_ids;
    peer_fixed_grant.name = grant.name;
}

static void fill_small(void)
{
    completion = (tow_codec_Completion){sample_id(1), 1234567, 5};
    peer_completion.program_id = completion.program_id;
    peer_completion.sequence = completion.sequence;
    peer_completion.code = completion.code;

    hello = (tow_codec_Hello){.version = 1,
                              .features = 0xff,
                              .role = "worker",
                              .name = "island-0/worker-17.cluster.example",
                              .build = "0.1.0 gcc 12.2 x86_64",
                              .token = {.size = 32},
                              .nonce = {.size = 16}};
    memset(hello.token.bytes, 0xa5, 32);
    memset(hello.nonce.bytes, 0x5a, 16);
    peer_hello.version = hello.version;
    peer_hello.features = hello.features;
    peer_hello.role = hello.role;
    peer_hello.name = hello.name;
    peer_hello.build = hello.build;
    peer_hello.token = (ProtobufCBinaryData){32, hello.token.bytes};
    peer_hello.nonce = (ProtobufCBinaryData){16, hello.nonce.bytes};
}

static bool encode_streamed(pb_ostream_t *stream, const pb_field_t *field,
                            void *const *argument)
{
    const tow_codec_Submission *from = *argument;
    for (size_t i = 0; i < from->nodes_count; i++) {
        if (!pb_encode_tag_for_field(stream, field) ||
            !pb_encode_submessage(stream, tow_codec_Node_fields,
                                  &from->nodes[i]))
            return false;
    }
    return true;
}

static bool decode_streamed(pb_istream_t *stream, const pb_field_t *field,
                            void **argument)
{
    (void)field;
    node_sink_t *into = *argument;
    if (into->count == NODES) PB_RETURN_ERROR(stream, "too many nodes");
    return pb_decode(stream, tow_codec_Node_fields,
                     &into->nodes[into->count++]);
}

static void fill_submissions(void)
{
    submission.program_id = sample_id(2);
    submission.nodes_count = NODES;
    for (size_t i = 0; i < NODES; i++) {
        tow_codec_Node *node = &submission.nodes[i];
        node->ids_count = NODE_IDS;
        for (size_t j = 0; j < NODE_IDS; j++)
            node->ids[j] = sample_id(i * NODE_IDS + j);
        snprintf(node->name, sizeof(node->name), "node_%011zu", i);
        tow__codec__node__init(&peer_nodes[i]);
        peer_nodes[i].n_ids = NODE_IDS;
        peer_nodes[i].ids = node->ids;
        peer_nodes[i].name = node->name;
        peer_node_pointers[i] = &peer_nodes[i];
    }
    peer_submission.program_id = submission.program_id;
    peer_submission.n_nodes = NODES;
    peer_submission.nodes = peer_node_pointers;
    streamed.program_id = submission.program_id;
    streamed.nodes.funcs.encode = encode_streamed;
    streamed.nodes.arg = &submission;
    heap.program_id = submission.program_id;
    heap.nodes_count = NODES;
    heap.nodes = submission.nodes;
}

/* ---- for tow_check, the limits that codec.options gives nanopb ---- */

static const tow_limits_t grant_limits = {
    .descriptor = &tow__codec__grant__descriptor,
    .fields = {[5] = {.count_max = GRANT_IDS}, [6] = {.bytes_max = 31}},
};

static const tow_limits_t fixed_grant_limits = {
    .descriptor = &tow__codec__fixed_grant__descriptor,
    .fields = {[5] = {.count_max = GRANT_IDS}, [6] = {.bytes_max = 31}},
};

static const tow_limits_t completion_limits = {
    .descriptor = &tow__codec__completion__descriptor,
};

static const tow_limits_t hello_limits = {
    .descriptor = &tow__codec__hello__descriptor,
    .fields = {[2] = {.bytes_max = 15},
               [3] = {.bytes_max = 63},
               [4] = {.bytes_max = 63},
               [5] = {.bytes_max = 32},
               [6] = {.bytes_max = 16}},
};

static const tow_limits_t node_limits = {
    .descriptor = &tow__codec__node__descriptor,
    .fields = {[0] = {.count_max = NODE_IDS}, [1] = {.bytes_max = 16}},
};

static const tow_limits_t submission_limits = {
    .descriptor = &tow__codec__submission__descriptor,
    .fields = {[1] = {.count_max = NODES, .nested = &node_limits}},
};

/* ---- one case: the same message for both libraries ---- */

typedef struct codec_case {
    const char *name;
    const pb_msgdesc_t *fields;
    const void *message;
    size_t message_bytes;
    const ProtobufCMessageDescriptor *peer_descriptor;
    const ProtobufCMessage *peer_message;
    const tow_limits_t *limits;
    void (*prepare)(void *message); /* before each nanopb decode; or NULL */
    void (*release)(void *message); /* after each nanopb decode; or NULL */
    uint8_t wire[FRAME_BYTES];
    size_t wire_bytes;
} codec_case_t;

/* Large enough for every decoded message; malloc aligns to 16 bytes. */
static union scratch {
    max_align_t align;
    uint8_t bytes[FRAME_BYTES];
} scratch;

static uint8_t encoded[FRAME_BYTES];

static size_t nanopb_encode(codec_case_t *self)
{
    pb_ostream_t stream = pb_ostream_from_buffer(encoded, sizeof(encoded));
    if (!pb_encode(&stream, self->fields, self->message))
        fail(self->name, PB_GET_ERROR(&stream));
    return stream.bytes_written;
}

/* pack() does not check the buffer's end, so the size is computed first. */
static size_t peer_encode(codec_case_t *self)
{
    if (protobuf_c_message_get_packed_size(self->peer_message) >
        sizeof(encoded))
        fail(self->name, "too large");
    return protobuf_c_message_pack(self->peer_message, encoded);
}

static size_t nanopb_decode(codec_case_t *self)
{
    pb_istream_t stream = pb_istream_from_buffer(self->wire, self->wire_bytes);
    if (self->prepare != NULL) self->prepare(&scratch);
    if (!pb_decode(&stream, self->fields, &scratch))
        fail(self->name, PB_GET_ERROR(&stream));
    if (self->release != NULL) self->release(&scratch);
    return self->wire_bytes;
}

static size_t peer_decode(codec_case_t *self)
{
    arena_reset();
    if (protobuf_c_message_unpack(self->peer_descriptor, &arena.allocator,
                                  self->wire_bytes, self->wire) == NULL)
        fail(self->name, "protobuf-c refused it");
    return self->wire_bytes;
}

static size_t checked_decode(codec_case_t *self)
{
    tow_check_fault_t fault;
    if (!tow_check(self->limits, self->wire, self->wire_bytes, &fault))
        fail(self->name, fault.problem);
    return peer_decode(self);
}

static void prepare_streamed(void *message)
{
    tow_codec_StreamedSubmission *into = message;
    into->nodes.funcs.decode = decode_streamed;
    into->nodes.arg = &sink;
    sink.count = 0;
}

static void release_heap(void *message)
{
    pb_release(tow_codec_HeapSubmission_fields, message);
}

/* ---- timing ---- */

typedef size_t (*operation_t)(codec_case_t *self);

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static double time_once(operation_t operation, codec_case_t *self, size_t count)
{
    uint64_t start = now_ns();
    for (size_t i = 0; i < count; i++) {
        operation(self);
        __asm__ volatile("" ::: "memory"); /* Keep every repetition. */
    }
    return (double)(now_ns() - start) / (double)count;
}

static size_t calibrate(operation_t operation, codec_case_t *self)
{
    double each = time_once(operation, self, 2000); /* also warms up */
    return (size_t)(ROUND_NS / each) + 1;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

typedef struct figure {
    double median, low, high; /* low and high: the 10th and 90th of 100 */
} figure_t;

static figure_t summarise(double samples[ROUNDS])
{
    qsort(samples, ROUNDS, sizeof(samples[0]), compare_doubles);
    return (figure_t){samples[ROUNDS / 2], samples[ROUNDS / 10],
                      samples[ROUNDS - 1 - ROUNDS / 10]};
}

/* Paired rounds in alternating order, so that other load affects both; the
 * ratio is the median of the pairs' ratios. */
static void compare(codec_case_t *self, const char *verb, operation_t ours,
                    operation_t theirs)
{
    double mine[ROUNDS], peer[ROUNDS], ratio[ROUNDS];
    size_t our_count = calibrate(ours, self);
    size_t their_count = calibrate(theirs, self);
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 2 == 0) mine[i] = time_once(ours, self, our_count);
        peer[i] = time_once(theirs, self, their_count);
        if (i % 2 == 1) mine[i] = time_once(ours, self, our_count);
        ratio[i] = mine[i] / peer[i];
    }
    figure_t a = summarise(mine), b = summarise(peer), r = summarise(ratio);
    printf("{\"bench\":\"codec\",\"case\":\"%s_%s\",\"value\":%.1f,"
           "\"unit\":\"ns/message\",\"peer\":\"protobuf-c\","
           "\"peer_value\":%.1f,\"ratio\":%.3f,\"simulated\":false,"
           "\"p10\":%.1f,\"p90\":%.1f,\"peer_p10\":%.1f,\"peer_p90\":%.1f}\n",
           self->name, verb, a.median, b.median, r.median, a.low, a.high, b.low,
           b.high);
}

static void print_count(const char *name, const char *what, double value,
                        const char *unit, double peer_value)
{
    printf("{\"bench\":\"codec\",\"case\":\"%s_%s\",\"value\":%.0f,"
           "\"unit\":\"%s\",\"peer\":\"protobuf-c\",\"peer_value\":%.0f,",
           name, what, value, unit, peer_value);
    if (peer_value > 0)
        printf("\"ratio\":%.3f,\"simulated\":false}\n", value / peer_value);
    else
        printf("\"ratio\":null,\"simulated\":false}\n");
}

static void measure_memory(codec_case_t *self)
{
    realloc_count = 0;
    nanopb_decode(self);
    peer_decode(self);
    print_count(self->name, "decode_allocations", (double)realloc_count,
                "allocations", (double)arena.allocation_count);
    print_count(self->name, "decoded_size", (double)self->message_bytes,
                "bytes", (double)arena.used);
}

/* Both libraries must write the same bytes for the times to be comparable. */
static void make_wire(codec_case_t *self)
{
    self->wire_bytes = nanopb_encode(self);
    memcpy(self->wire, encoded, self->wire_bytes);
    memset(encoded, 0, self->wire_bytes);
    if (peer_encode(self) != self->wire_bytes ||
        memcmp(encoded, self->wire, self->wire_bytes) != 0)
        fail(self->name, "the libraries disagree on the encoding");
    print_count(self->name, "wire_size", (double)self->wire_bytes, "bytes",
                (double)self->wire_bytes);
}

static void check_decoded(codec_case_t *self)
{
    if (self->prepare != NULL || self->release != NULL) return;
    nanopb_decode(self);
    pb_ostream_t stream = pb_ostream_from_buffer(encoded, sizeof(encoded));
    if (!pb_encode(&stream, self->fields, &scratch) ||
        stream.bytes_written != self->wire_bytes ||
        memcmp(encoded, self->wire, self->wire_bytes) != 0)
        fail(self->name, "nanopb does not read back what it wrote");
}

/* nanopb's struct `variable` of message `type`, and protobuf-c's twin. */
#define CASE(label, type, variable, peer_type, peer_variable)               \
    {                                                                       \
        .name = label, .fields = tow_codec_##type##_fields,                 \
        .message = &variable, .message_bytes = sizeof(variable),            \
        .peer_descriptor = &tow__codec__##peer_type##__descriptor,          \
        .peer_message = &peer_variable.base, .limits = &peer_type##_limits, \
    }

static codec_case_t cases[] = {
    CASE("grant", Grant, grant, grant, peer_grant),
    CASE("fixed_grant", FixedGrant, fixed_grant, fixed_grant, peer_fixed_grant),
    CASE("completion", Completion, completion, completion, peer_completion),
    CASE("hello", Hello, hello, hello, peer_hello),
    CASE("submission", Submission, submission, submission, peer_submission),
    CASE("streamed_submission", StreamedSubmission, streamed, submission,
         peer_submission),
    CASE("heap_submission", HeapSubmission, heap, submission, peer_submission),
};

enum {
    CASE_COUNT = sizeof(cases) / sizeof(cases[0])
};

static void run_case(codec_case_t *self)
{
    if (self->message == &streamed) self->prepare = prepare_streamed;
    if (self->message == &heap) self->release = release_heap;
    make_wire(self);
    check_decoded(self);
    compare(self, "encode", nanopb_encode, peer_encode);
    compare(self, "decode", nanopb_decode, peer_decode);
    compare(self, "decode_checked", nanopb_decode, checked_decode);
    measure_memory(self);
}

/* ---- JAX's compile options: a big message of which we know a part ---- */

static codec_case_t options_case = {
    .name = "compile_options",
    .fields = tow_codec_CompileOptions_fields,
    .message_bytes = sizeof(tow_codec_CompileOptions),
    .peer_descriptor = &tow__codec__compile_options__descriptor,
};

static void run_options(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail(path, "cannot be opened");
    codec_case_t *self = &options_case;
    self->wire_bytes = fread(self->wire, 1, sizeof(self->wire), file);
    fclose(file);
    if (self->wire_bytes == 0) fail(path, "is empty");
    compare(self, "decode", nanopb_decode, peer_decode);
    measure_memory(self);
}

/* ---- hostile frames ---- */

/* Repeats a two-byte field until the frame is full. */
static size_t flood(uint8_t *frame, uint8_t key, uint8_t value)
{
    for (size_t i = 0; i < FRAME_BYTES; i += 2) {
        frame[i] = key;
        frame[i + 1] = value;
    }
    return FRAME_BYTES;
}

/* One length-delimited field, below 16 in number, that fills the frame. */
static size_t one_long_field(uint8_t *frame, uint8_t field, uint8_t content)
{
    size_t length = FRAME_BYTES - 4;
    memset(frame, content, FRAME_BYTES);
    frame[0] = (uint8_t)(field << 3 | 2);
    frame[1] = (uint8_t)(length | 0x80);
    frame[2] = (uint8_t)(length >> 7 | 0x80);
    frame[3] = (uint8_t)(length >> 14);
    return FRAME_BYTES;
}

static void show_hostile(const char *name, const pb_msgdesc_t *fields,
                         const tow_limits_t *limits, const uint8_t *frame,
                         size_t frame_bytes)
{
    realloc_bytes = 0;
    pb_istream_t stream = pb_istream_from_buffer(frame, frame_bytes);
    bool accepted = pb_decode(&stream, fields, &scratch);
    arena_reset();
    bool peer_accepted =
        protobuf_c_message_unpack(limits->descriptor, &arena.allocator,
                                  frame_bytes, frame) != NULL;
    tow_check_fault_t fault;
    bool checked = tow_check(limits, frame, frame_bytes, &fault);
    printf("{\"bench\":\"codec\",\"case\":\"hostile_%s\",\"value\":%" PRIu64
           ",\"unit\":\"bytes allocated\",\"peer\":\"protobuf-c\","
           "\"peer_value\":%zu,\"ratio\":%.3f,\"simulated\":false,"
           "\"outcome\":\"%s\",\"peer_outcome\":\"%s\","
           "\"check_outcome\":\"%s\"}\n",
           name, realloc_bytes, arena.used,
           (double)realloc_bytes / (double)arena.used,
           accepted ? "accepted" : PB_GET_ERROR(&stream),
           peer_accepted ? "accepted" : "refused",
           checked ? "accepted" : fault.problem);
}

static void run_hostile(void)
{
    static uint8_t frame[FRAME_BYTES];
    size_t size = flood(frame, 15 << 3 | 0, 1);
    show_hostile("unknown_fields", tow_codec_Grant_fields, &grant_limits, frame,
                 size);
    size = flood(frame, 1 << 3 | 0, 1);
    show_hostile("same_field", tow_codec_Grant_fields, &grant_limits, frame,
                 size);
    size = flood(frame, 2 << 3 | 2, 0);
    show_hostile("empty_nodes", tow_codec_Submission_fields, &submission_limits,
                 frame, size);
    size = one_long_field(frame, 6, 1);
    show_hostile("many_ids", tow_codec_Grant_fields, &grant_limits, frame,
                 size);
    size = one_long_field(frame, 4, 'x');
    show_hostile("long_name", tow_codec_Hello_fields, &hello_limits, frame,
                 size);
    size = one_long_field(frame, 4, 'x') / 2; /* The length now lies. */
    show_hostile("truncated", tow_codec_Hello_fields, &hello_limits, frame,
                 size);
}

int main(int argument_count, char **arguments)
{
    if (argument_count > 2) fail("usage", "codec_bench [OPTIONS_FILE]");
    arena_init();
    fill_grants();
    fill_small();
    fill_submissions();
    for (size_t i = 0; i < CASE_COUNT; i++)
        run_case(&cases[i]);
    if (argument_count == 2) run_options(arguments[1]);
    run_hostile();
    free(arena.base);
    return 0;
}
