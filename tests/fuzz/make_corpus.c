/* Writes the seeds of all fuzz targets: valid input of each kind, made by
 * production code, and malformed input from the unit tests. Run it when the
 * wire changes:
 *
 *     build/tests/fuzz/make_corpus tests/fuzz/corpus
 * */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "device/compiler/cache_entry.h"
#include "device/partition_query.h"
#include "ir/graph.h"
#include "pjrt/saved.h"
#include "wire/frame.h"
#include "wire/handshake.h"
#include "wire/message.h"

typedef struct buffer {
    size_t count;
    uint8_t bytes[1 << 16];
} buffer_t;

static const char *corpus;

static void add(buffer_t *buffer, const void *bytes, size_t count)
{
    if (count > sizeof(buffer->bytes) - buffer->count) abort();
    memcpy(buffer->bytes + buffer->count, bytes, count);
    buffer->count += count;
}

static void add_byte(buffer_t *buffer, unsigned byte)
{
    uint8_t small = (uint8_t)byte;
    add(buffer, &small, 1);
}

static void save(const char *target, const char *name, const buffer_t *buffer)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", corpus, target);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        exit(1);
    }
    snprintf(path, sizeof(path), "%s/%s/%s", corpus, target, name);
    FILE *file = fopen(path, "wb");
    bool written = file != NULL && fwrite(buffer->bytes, 1, buffer->count,
                                          file) == buffer->count;
    if (file == NULL || fclose(file) != 0 || !written) {
        perror(path);
        exit(1);
    }
}

/* -- Messages -------------------------------------------------------------- */

typedef struct sample {
    char name[64];
    uint32_t type;
    const tow_body_t *body; /* never freed: this program ends soon */
} sample_t;

static void *make_room(size_t count, size_t bytes)
{
    void *room = calloc(count, bytes);
    if (room == NULL) abort();
    return room;
}

static size_t bytes_of_element(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4;
    }
}

static tow_body_t *make_body(const tow_limits_t *limits);

/* Sets a value that uses all bytes of its type and depends on `index`, so that
 * all fields differ. */
static void set_element(const tow_limits_t *limits, unsigned index,
                        void *element)
{
    static uint8_t some_bytes[48] = {1, 2, 3, 0, 255};
    const tow_field_limits_t *field = &limits->fields[index];
    const uint64_t number = 0x0102030405060708u * (index + 1);
    switch (limits->descriptor->fields[index].type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        *(tow_body_t **)element = make_body(field->nested);
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(const char **)element = "worker/3: text";
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)element = (ProtobufCBinaryData){
            field->bytes_max < 32 ? field->bytes_max : 32, some_bytes};
        break;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)element = 1; break;
    case PROTOBUF_C_TYPE_DOUBLE: *(double *)element = 1.5 * index; break;
    default:
        memcpy(element, &number,
               bytes_of_element(limits->descriptor->fields[index].type));
    }
}

/* All fields are set; repeated ones have two elements. */
static tow_body_t *make_body(const tow_limits_t *limits)
{
    const ProtobufCMessageDescriptor *descriptor = limits->descriptor;
    tow_body_t *body = make_room(1, descriptor->sizeof_message);
    protobuf_c_message_init(descriptor, body);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        char *member = (char *)body + field->offset;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            set_element(limits, i, member);
            continue;
        }
        size_t bytes = bytes_of_element(field->type);
        char *elements = make_room(2, bytes);
        set_element(limits, i, elements);
        set_element(limits, i, elements + bytes);
        *(void **)(void *)member = elements;
        *(size_t *)(void *)((char *)body + field->quantifier_offset) = 2;
    }
    return body;
}

/* "SessionResume" becomes "session_resume". */
static void set_name(sample_t *sample, const char *short_name)
{
    size_t length = 0;
    for (const char *c = short_name; *c != '\0'; c++) {
        bool is_upper = *c >= 'A' && *c <= 'Z';
        if (length + 3 > sizeof(sample->name)) abort();
        if (is_upper && length > 0) sample->name[length++] = '_';
        sample->name[length++] = (char)(is_upper ? *c - 'A' + 'a' : *c);
    }
    sample->name[length] = '\0';
}

/* One sample of each message type of the schema. */
static size_t make_samples(sample_t *samples)
{
    size_t count = 0;
    for (uint32_t type = 0; type < TOW_MESSAGE_TYPE_COUNT; type++) {
        const tow_limits_t *limits = tow_message_limits(type);
        if (limits == NULL) continue;
        sample_t *sample = &samples[count++];
        sample->type = type;
        sample->body = make_body(limits);
        set_name(sample, limits->descriptor->short_name);
    }
    return count;
}

static void add_message(buffer_t *buffer, const tow_body_t *body)
{
    uint8_t bytes[8192];
    if (tow_message_size(body) > sizeof(bytes)) abort();
    add(buffer, bytes, tow_message_encode(body, bytes));
}

static void add_frame(buffer_t *buffer, const sample_t *sample)
{
    uint8_t frame[8192];
    size_t size = tow_message_size(sample->body);
    if (size > sizeof(frame) - TOW_FRAME_HEADER_SIZE) abort();
    tow_message_encode(sample->body, frame + TOW_FRAME_HEADER_SIZE);
    tow_frame_seal(frame, (uint16_t)sample->type, (uint32_t)size);
    add(buffer, frame, TOW_FRAME_HEADER_SIZE + size);
}

static void save_messages_and_frames(void)
{
    static sample_t samples[TOW_MESSAGE_TYPE_COUNT];
    size_t count = make_samples(samples);
    buffer_t stream = {0}, mended = {0};
    add_byte(&stream, 0);
    add_byte(&mended, 1);
    for (size_t i = 0; i < count; i++) {
        buffer_t message = {0}, frame = {0};
        add_byte(&message, samples[i].type);
        add_message(&message, samples[i].body);
        save("message_fuzz", samples[i].name, &message);
        add(&message, "\xa2\x06\x03new", 6);
        char name[96];
        snprintf(name, sizeof(name), "%.63s_with_unknown_field",
                 samples[i].name);
        save("message_fuzz", name, &message);
        add_byte(&frame, i % 2);
        add_frame(&frame, &samples[i]);
        save("frame_fuzz", samples[i].name, &frame);
        add_frame(&stream, &samples[i]);
        add_frame(&mended, &samples[i]);
    }
    save("frame_fuzz", "stream", &stream);
    save("frame_fuzz", "stream_to_mend", &mended);
    stream.count -= 7;
    save("frame_fuzz", "stream_cut_off", &stream);
    stream.bytes[20] ^= 4;
    save("frame_fuzz", "stream_damaged", &stream);
    buffer_t oversize = {0};
    add(&oversize, "\x00\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00", 13);
    save("frame_fuzz", "oversize", &oversize);
}

/* -- Handshakes ------------------------------------------------------------ */

static tow_handshake_t *make_side(tow_side_t side)
{
    static tow_security_t security = {.has_token = true, .token = {{1, 2, 3}}};
    bool dials = side == TOW_SIDE_DIALLER;
    tow_handshake_options_t options = {.side = side, .security = &security};
    options.self.incarnation = dials ? 7 : 8;
    options.self.features = 0xff;
    snprintf(options.self.name, sizeof(options.self.name), "%s",
             dials ? "worker/1" : "controller");
    snprintf(options.self.software, sizeof(options.self.software), "fuzz");
    memset(options.nonce, dials ? 0x33 : 0x44, TOW_NONCE_SIZE);
    tow_handshake_t *machine;
    if (tow_handshake_create(&options, &machine) != TOW_OK) abort();
    return machine;
}

/* Passes the output of one side to the other, and appends it to `said`. */
static void pass(tow_handshake_t *from, tow_handshake_t *to, buffer_t *said)
{
    const uint8_t *bytes;
    size_t count, consumed;
    tow_handshake_take_output(from, &bytes, &count);
    add(said, bytes, count);
    tow_handshake_feed(to, bytes, count, &consumed);
}

/* The bytes of each side in a successful handshake; the nonces of the fuzz
 * target differ, so there they are replays. */
static void save_handshakes(void)
{
    tow_handshake_t *dialler = make_side(TOW_SIDE_DIALLER);
    tow_handshake_t *listener = make_side(TOW_SIDE_LISTENER);
    buffer_t from_dialler = {0}, from_listener = {0};
    add_byte(&from_dialler, 1);
    add_byte(&from_listener, 0);
    for (int i = 0; i < 2; i++) {
        pass(dialler, listener, &from_dialler);
        pass(listener, dialler, &from_listener);
    }
    tow_handshake_destroy(dialler);
    tow_handshake_destroy(listener);
    save("handshake_fuzz", "from_dialler", &from_dialler);
    save("handshake_fuzz", "from_listener", &from_listener);
    from_dialler.bytes[0] |= 2 | 16;
    from_listener.bytes[0] |= 2 | 16;
    save("handshake_fuzz", "from_dialler_to_mend_in_pieces", &from_dialler);
    save("handshake_fuzz", "from_listener_to_mend_in_pieces", &from_listener);
    from_dialler.bytes[8] = 2; /* the version */
    save("handshake_fuzz", "other_version", &from_dialler);
}

static void save_strangers(void)
{
    static const struct {
        const char *name;
        const char *bytes;
    } table[] = {
        {"http", "\x01GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {"http_answer", "\x08HTTP/1.1 400 Bad Request\r\n"},
        {"ssh", "\x01SSH-2.0-OpenSSH_9.2\r\n"},
        {"tls", "\x01\x16\x03\x01\x02"},
        {"unchanged", "\x04"},
        {"changed_name", "\x06\x40\x01\x01"},
        {"changed_listener", "\x0f\x50\x01\x20\x90\x01\x01"},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        buffer_t buffer = {0};
        add(&buffer, table[i].bytes, strlen(table[i].bytes));
        save("handshake_fuzz", table[i].name, &buffer);
    }
    buffer_t refused = {0};
    tow_msg_refuse_t refuse = TOW_MSG_REFUSE_INIT;
    refuse.code = 99;
    refuse.reason = "go\naway \x1b[31m";
    add(&refused, "\x03TOWPATH\x01", 9);
    add_frame(&refused,
              &(sample_t){"refuse", TOW_MESSAGE_REFUSE, &refuse.base});
    save("handshake_fuzz", "refused", &refused);
}

/* -- Sessions -------------------------------------------------------------- */

/* The steps are those of session_fuzz.c: 0x80 breaks the link, 0x81 and 0x82
 * wait, 0x83 and 0x84 make the victim send, 0x85 resumes, 0x86 acknowledges; a
 * byte below is a message of that type. */
static void add_session_message(buffer_t *buffer, uint32_t type,
                                const tow_body_t *body)
{
    uint8_t bytes[255];
    if (tow_message_size(body) > sizeof(bytes)) abort();
    size_t size = tow_message_encode(body, bytes);
    add_byte(buffer, type);
    add_byte(buffer, (unsigned)size);
    add(buffer, bytes, size);
}

static void add_part(buffer_t *buffer, uint64_t offset, size_t length)
{
    static uint8_t bytes[64] = {5};
    tow_msg_blob_t part = TOW_MSG_BLOB_INIT;
    part.blob = 1;
    part.size = 100;
    part.offset = offset;
    part.part = (ProtobufCBinaryData){length, bytes};
    add_session_message(buffer, TOW_MESSAGE_BLOB, &part.base);
}

static void save_sessions(void)
{
    static const struct {
        const char *name;
        const char *steps; /* after the byte that selects the victim */
    } table[] = {
        {"talk", "\x85\x01\x83\x83\x81\x86\x02\x3e\x02hi\x81"},
        {"break", "\x85\x01\x83\x81\x80\x81\x85\x02\x83\x81\x86\x02"},
        {"blobs", "\x85\x01\x84\x09\x84\xff\x81\x86\x03\x80\x85\x03"},
        {"resume_twice", "\x85\x01\x85\x01\x81"},
        {"too_much", "\x85\x01\x86\x09\x81"},
        {"silence", "\x85\x01\x82\x81"},
        {"handshake", "\x85\x01\x04\x01!\x81"},
        {"before", "\x3e\x02hi\x81"},
        {"unknown", "\x85\x01\x2f\x01!\x81"},
    };
    tow_msg_session_end_t end = TOW_MSG_SESSION_END_INIT;
    end.code = TOW_DATA_LOSS;
    end.reason = "all\tis lost";
    for (unsigned listens = 0; listens < 2; listens++) {
        char name[64];
        for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
            buffer_t buffer = {0};
            snprintf(name, sizeof(name), "%.40s_%u", table[i].name, listens);
            add_byte(&buffer, listens);
            add(&buffer, table[i].steps, strlen(table[i].steps));
            save("session_fuzz", name, &buffer);
        }
        buffer_t parts = {0}, ended = {0};
        add_byte(&parts, listens);
        add(&parts, "\x85\x01\x81", 3);
        add_part(&parts, 0, 60);
        add(&parts, "\x80\x81\x85\x01", 4);
        add_part(&parts, 60, 40);
        add_part(&parts, 60, 40);
        snprintf(name, sizeof(name), "parts_%u", listens);
        save("session_fuzz", name, &parts);
        add_byte(&ended, listens);
        add(&ended, "\x85\x01\x81", 3);
        add_session_message(&ended, TOW_MESSAGE_SESSION_END, &end.base);
        snprintf(name, sizeof(name), "ended_%u", listens);
        save("session_fuzz", name, &ended);
    }
}

/* -- Addresses and TLS ----------------------------------------------------- */

static void save_addresses(void)
{
    static const char *const table[] = {
        "unix:/run/tow.sock", "tcp:127.0.0.1:7000",  "tcp:[::1]:65535",
        "tls:host.example:7", "tls:[2001:db8::5]:0", "sim:worker/3",
        "tcp:localhost:1",    "tcp:127.1:80",        "tcp:::1:80",
        "tcp:host:99999",     "http://host",
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        char name[16];
        buffer_t buffer = {0};
        snprintf(name, sizeof(name), "%02zu", i);
        add(&buffer, table[i], strlen(table[i]));
        save("address_fuzz", name, &buffer);
    }
}

static void save_tls(void)
{
    buffer_t buffer = {0};
    /* The shortest ClientHello that offers TLS 1.3. */
    static const uint8_t hello[] = {
        1, 0x16, 3, 1, 0, 54, 1, 0,    0, 50, 3, 3, 1, 2, 3,  4, 5, 6, 7, 8,
        9, 1,    2, 3, 4, 5,  6, 7,    8, 9,  1, 2, 3, 4, 5,  6, 7, 8, 9, 1,
        2, 3,    4, 5, 0, 0,  2, 0x13, 1, 1,  0, 0, 7, 0, 43, 0, 3, 2, 3, 4};
    add(&buffer, hello, sizeof(hello));
    save("tls_fuzz", "client_hello", &buffer);
    buffer.bytes[0] = 2 | 1;
    save("tls_fuzz", "client_hello_in_pieces", &buffer);
    buffer.bytes[0] = 0;
    save("tls_fuzz", "client_hello_to_dialler", &buffer);
    buffer.count = 0;
    add(&buffer, "\x00\x15\x03\x03\x00\x02\x02\x28", 8);
    save("tls_fuzz", "alert", &buffer);
    buffer.count = 0;
    add(&buffer, "\x01TOWPATH\x01", 9);
    save("tls_fuzz", "towpath", &buffer);
}

/* -- Programs -------------------------------------------------------------- */

/* As text, and as a graph behind a 'g'. */
static void save_program(const char *name, const char *text)
{
    char graph_name[64];
    buffer_t buffer = {0};
    tow_graph_t *program;
    void *bytes;
    size_t size;
    add(&buffer, text, strlen(text));
    save("program_fuzz", name, &buffer);
    tow_status_t status = tow_graph_parse(text, strlen(text), &program);
    tow_status_release(status);
    if (program == NULL) return;
    if (tow_graph_pack(program, &bytes, &size) != TOW_OK) abort();
    buffer.count = 0;
    add_byte(&buffer, 'g');
    add(&buffer, bytes, size);
    snprintf(graph_name, sizeof(graph_name), "graph_%s", name);
    save("program_fuzz", graph_name, &buffer);
    tow_free(bytes);
    tow_graph_destroy(program);
}

/* Two steps over one argument, behind an 'l'. */
static void save_lowered(void)
{
    uint32_t numbers[] = {0, 1, 2};
    tow_msg_lowered_step_t steps[2] = {TOW_MSG_LOWERED_STEP_INIT,
                                       TOW_MSG_LOWERED_STEP_INIT};
    tow_msg_lowered_step_t *pointers[] = {&steps[0], &steps[1]};
    tow_msg_lowered_t lowered = TOW_MSG_LOWERED_INIT;
    uint8_t bytes[256];
    buffer_t buffer = {0};
    for (uint32_t i = 0; i < 2; i++) {
        steps[i].executable = 10 + i;
        steps[i].inputs = &numbers[i];
        steps[i].n_inputs = 1;
        steps[i].first_output = 1 + i;
        steps[i].output_count = 1;
        steps[i].node = 1 + i;
        steps[i].index = i;
    }
    steps[0].non_donatable = &numbers[0];
    steps[0].n_non_donatable = 1;
    steps[1].freed = &numbers[1];
    steps[1].n_freed = 1;
    lowered.slot_count = 3;
    lowered.argument_count = 1;
    lowered.results = &numbers[2];
    lowered.n_results = 1;
    lowered.steps = pointers;
    lowered.n_steps = 2;
    lowered.step_count_all = 2;
    add_byte(&buffer, 'l');
    add(&buffer, bytes, tow_message_encode(&lowered.base, bytes));
    save("program_fuzz", "lowered", &buffer);
}

/* A transfer of two shards: one whole and one half at each end. */
static void save_routes(void)
{
    int64_t dims[] = {4};
    uint64_t starts[] = {0, 2}, extents[] = {2};
    uint32_t numbers[] = {0, 1};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_piece_t pieces[3] = {TOW_MSG_PIECE_INIT, TOW_MSG_PIECE_INIT,
                                 TOW_MSG_PIECE_INIT};
    tow_msg_piece_t *pointers[] = {&pieces[0], &pieces[1], &pieces[2]};
    tow_msg_route_t route = TOW_MSG_ROUTE_INIT;
    tow_msg_lowered_step_t step = TOW_MSG_LOWERED_STEP_INIT;
    tow_msg_lowered_step_t *steps[] = {&step};
    tow_msg_lowered_t lowered = TOW_MSG_LOWERED_INIT;
    uint8_t bytes[512];
    buffer_t buffer = {0};
    type.type = TOW_TYPE_F32;
    type.dims = dims;
    type.n_dims = 1;
    for (uint32_t i = 1; i < 3; i++) {
        pieces[i].target_shard = 1;
        pieces[i].number = i - 1;
        pieces[i].offset = (uint64_t)(i - 1) * 8;
        pieces[i].source_start = pieces[i].target_start = &starts[i - 1];
        pieces[i].n_source_start = pieces[i].n_target_start = 1;
        pieces[i].extent = extents;
        pieces[i].n_extent = 1;
    }
    route.source = route.target = &type;
    route.source_count = 2;
    route.sends = route.receives = pointers;
    route.n_sends = route.n_receives = 3;
    route.target_devices = numbers;
    route.n_target_devices = 2;
    step.route = &route;
    step.inputs = &numbers[0];
    step.n_inputs = 1;
    step.first_output = step.output_count = 1;
    lowered.slot_count = 2;
    lowered.argument_count = 1;
    lowered.results = &numbers[1];
    lowered.n_results = 1;
    lowered.steps = steps;
    lowered.n_steps = 1;
    lowered.step_count_all = 1;
    add_byte(&buffer, 'l');
    add(&buffer, bytes, tow_message_encode(&lowered.base, bytes));
    save("program_fuzz", "routes", &buffer);
}

static void save_programs(void)
{
    save_program("two_steps",
                 "program \"step\" {\n"
                 "  %0 = argument \"x\" : f32[4] on slice 1 donated\n"
                 "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
                 "  %2 = compute \"B\" function 2 on slice 1 (%1, %1:0)\n"
                 "  %3 = result \"y\" (%2:1) // the second\n"
                 "}\n");
    save_program("two_slices",
                 "program {%0=result(%1:1)%1=compute function 3 on slice 1()"
                 "%2=compute function 3 on slice 2()%3=result(%2)"
                 "%4=compute function 4 on slice 2(%2:1)%5=result(%4)}");
    save_program("cycle",
                 "program { %0 = compute \"a\\x0a\" function 1 on slice 1 (%1)"
                 " %1 = compute function 1 on slice 1 (%0) %2 = result (%1) }");
    save_program("types", "program { %0 = argument : #77[-1,2] on slice 3 (%9)"
                          " %1 = argument : pred[] on slice 1 }");
    save_program("numbers", "program { %0 = result (%4294967295:4294967296) }");
    save_program("unfinished", "program \"\\x");
    save_program("transfers",
                 "program \"moves\" {\n"
                 "  %0 = argument \"x\" : f32[4] on slice 1 as 2 donated\n"
                 "  %1 = compute function 5 on slice 2 (%0)\n"
                 "  %2 = transfer \"t\" from *2 mesh 1x2 axes 1,0 to slice 1\n"
                 "       as 2 (%1) // of the wrong rank\n"
                 "  %3 = result (%2)\n"
                 "}\n");
    save_program(
        "inserted",
        "program { %0 = argument : f32[8] on slice 1 as 1*2 "
        "%1 = compute function 6 on slice 1 (%0) "
        "%2 = compute function 5 on slice 2 (%1) "
        "%3 = compute function 5 on slice 1 (%2) "
        "%4 = transfer from ? to slice 2 as 2 (%3) %5 = result (%4) }");
    save_lowered();
    save_routes();
}

/* -- Shardings ------------------------------------------------------------- */

static void save_sharding(const char *name, const char *text,
                          size_t device_count)
{
    uint8_t bytes[TOW_SHARDING_XLA_MAX];
    char xla_name[64];
    buffer_t buffer = {0};
    tow_sharding_t sharding;
    add(&buffer, text, strlen(text));
    save("sharding_fuzz", name, &buffer);
    if (tow_sharding_parse(text, strlen(text), &sharding) != TOW_OK) abort();
    buffer.count = 0;
    add_byte(&buffer, 'x');
    add_byte(&buffer, sharding.rank);
    add_byte(&buffer, (unsigned)device_count - 1);
    add(&buffer, bytes, tow_sharding_to_xla(&sharding, bytes));
    snprintf(xla_name, sizeof(xla_name), "xla_%s", name);
    save("sharding_fuzz", xla_name, &buffer);
}

static void save_shardings(void)
{
    static const uint8_t list[] = {'x', 1, 3,  8, 3, 26, 2, 2, 2,
                                   48,  1, 34, 4, 0, 2,  1, 3};
    buffer_t buffer = {0};
    save_sharding("parts", "2x4", 8);
    save_sharding("replicas", "2x2*2", 8);
    save_sharding("mesh", "2x4*2 mesh 4x2x2 axes 1,0,2", 16);
    save_sharding("scalar", "*8", 8);
    /* Older versions list the devices. */
    add(&buffer, list, sizeof(list));
    save("sharding_fuzz", "xla_list", &buffer);
}

/* -- Saved executables ----------------------------------------------------- */

static void save_executable(const char *name, const char *program,
                            const char *options)
{
    void *bytes;
    size_t size;
    buffer_t buffer = {0};
    if (tow_saved_pack(&(tow_saved_t){.program = {program, strlen(program)},
                                      .options = {options, strlen(options)}},
                       &bytes, &size) != TOW_OK)
        abort();
    add(&buffer, bytes, size);
    save("saved_fuzz", name, &buffer);
    buffer.count = 0;
    add(&buffer, bytes, size - 1);
    char part[64];
    snprintf(part, sizeof(part), "part_of_%s", name);
    save("saved_fuzz", part, &buffer);
    tow_free(bytes);
}

/* -- Files of the compile cache -------------------------------------------- */

static void save_cache_entry(const char *name, const char *signature,
                             const char *executable)
{
    const tow_code_key_t key = {{1, 2, 3}};
    const tow_bytes_t parts[] = {{signature, strlen(signature)},
                                 {executable, strlen(executable)}};
    uint8_t header[TOW_CACHE_ENTRY_HEADER_SIZE];
    buffer_t buffer = {0};
    if (tow_cache_entry_header(&key, parts[0], parts[1], header) != TOW_OK)
        abort();
    add(&buffer, header, sizeof(header));
    add(&buffer, parts[0].data, parts[0].size);
    add(&buffer, parts[1].data, parts[1].size);
    save("cache_entry_fuzz", name, &buffer);
}

/* -- Partition queries ----------------------------------------------------- */

static void save_bytes(const char *name, void *take_bytes, size_t size)
{
    buffer_t buffer = {0};
    add(&buffer, take_bytes, size);
    save("partition_query_fuzz", name, &buffer);
    tow_free(take_bytes);
}

static void save_partition_queries(void)
{
    const tow_xla_partition_value_t values[] = {
        {.shape = {"shape", 5}, .sharding = {"sharding", 8}},
        {.shape = {"", 0}, .sharding = {"", 0}},
        {.shape = {"shape", 5}},
    };
    const tow_xla_bytes_t shardings[] = {{"one", 3}, {"", 0}};
    const tow_xla_partition_query_t query = {.kind = TOW_XLA_QUERY_PARTITION,
                                             .target = TOW_XLA_PARTITION_TARGET,
                                             .config = {"140", 3},
                                             .operands = values,
                                             .operand_count = 3,
                                             .result = values[0]};
    const tow_xla_partition_reply_t reply = {.program = {"module {}", 9},
                                             .operand_shardings = shardings,
                                             .operand_count = 2,
                                             .result_sharding = {"", 0}};
    void *bytes;
    size_t size;
    if (tow_partition_query_pack(&query, &bytes, &size) != TOW_OK) abort();
    save_bytes("query", bytes, size);
    if (tow_partition_reply_pack(&reply, &bytes, &size) != TOW_OK) abort();
    save_bytes("reply", bytes, size);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    corpus = argv[1];
    save_messages_and_frames();
    save_handshakes();
    save_sessions();
    save_strangers();
    save_addresses();
    save_tls();
    save_programs();
    save_shardings();
    save_executable("whole", "a program", "options");
    save_executable("without_options", "a program", "");
    save_cache_entry("whole", "a signature", "machine code");
    save_cache_entry("empty", "", "");
    save_partition_queries();
    return 0;
}
