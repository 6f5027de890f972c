/* Input: messages of a hostile peer that has the token, on a trunk to a real
 * data plane. Each message is a byte for its kind and flags, a byte for the
 * size of its payload, and its header; the payload follows from these. Flags
 * put the true numbers of a lane and of a region into the header, which no
 * random bytes would hit. If the first byte says so, the trunk is one over TLS
 * with subflows, and the messages are sent on these. The data plane must live,
 * and serve the next peer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "env/net/data/data.h"
#include "env/net/data/wire.h"
#include "fuzz.h"

#define REGION_BYTES 4096u
#define TURN_COUNT   64

enum {
    KIND = 7,
    TRUE_STREAM = 8,
    TRUE_REGION = 16,
    LARGE_PAYLOAD = 32, /* in units of 1 KiB, not of bytes */
    TRUE_SIZE = 64,     /* of the header */
    ON_SUBFLOWS = 128,  /* in the first byte of the input */
};

static tow_security_t security = {.has_token = true};

typedef struct node {
    tow_net_t *net;
    tow_env_t *env;
} node_t;

static void refuse(void *context, tow_link_t *link)
{
    (void)context;
    tow_link_close(link, (tow_closed_t){0});
}

static node_t create_node(const char *name)
{
    node_t node;
    const tow_net_options_t options = {.name = name,
                                       .security = &security,
                                       .log = {.level = TOW_LOG_OFF},
                                       .spin_ns = -1,
                                       .data_plane = TOW_NET_DATA_UCX};
    tow_status_t status = tow_net_create(&options, &node.net);
    TOW_ASSERT(status == TOW_OK);
    node.env = tow_net_env(node.net);
    return node;
}

static node_t victims[2]; /* without and with subflows */

static void destroy_victims(void)
{
    for (size_t i = 0; i < TOW_COUNT_OF(victims); i++)
        if (victims[i].net != NULL) tow_net_destroy(victims[i].net);
    tow_tls_context_destroy(security.tls);
}

static void set_up(void)
{
    const tow_tls_options_t options = {.makes_certificate = true};
    setenv("TOW_SHARED_MEMORY", "off", 1);
    setenv("TOW_DATA_STREAMS", "2", 1);
    tow_status_t status = tow_tls_context_create(&options, &security.tls);
    TOW_ASSERT(status == TOW_OK);
    /* After OpenSSL's own, so that it runs before: OpenSSL frees what belongs
     * to our threads when they end, but not after its cleanup. */
    atexit(destroy_victims);
}

static node_t create_victim(bool on_subflows)
{
    char address[64] = "tls:127.0.0.1:0";
    if (!on_subflows)
        snprintf(address, sizeof(address), "unix:/tmp/tow-trunk-%d.sock",
                 (int)getpid());
    node_t node = create_node("victim");
    const tow_listen_options_t options = {
        .address = address, .carries_lanes = true, .accept = refuse};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(node.env, &options, &listener);
    TOW_ASSERT(status == TOW_OK);
    return node;
}

typedef struct attack {
    node_t attacker;
    node_t victim;
    bool on_subflows;
    tow_lane_t *lane;
    uint64_t stream;
} attack_t;

static void turn(const attack_t *attack)
{
    tow_net_turn(attack->attacker.net, 0);
    tow_net_turn(attack->victim.net, 0);
}

/* Threads need time, too. */
static void turn_slowly(const attack_t *attack)
{
    turn(attack);
    if (attack->on_subflows) tow_net_turn(attack->victim.net, 20000);
}

static void ignore_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    (void)context, (void)lane, (void)cause;
}

static bool is_open(attack_t *attack)
{
    return tow_net_data_is_answered(attack->lane, &attack->stream) &&
           (!attack->on_subflows || tow_net_data_may_stripe(attack->lane));
}

static void open_lane(attack_t *attack)
{
    const void *address;
    size_t size;
    tow_env_lane_address(attack->victim.env, &address, &size);
    const tow_lane_options_t options = {
        .address = address, .address_size = size, .down = ignore_down};
    tow_status_t status =
        tow_env_lane_open(attack->attacker.env, &options, &attack->lane);
    TOW_ASSERT(status == TOW_OK);
    for (int i = 0; !is_open(attack); i++) {
        TOW_ASSERT(i < 1000000);
        turn(attack);
    }
}

static uint16_t true_header_size(uint8_t kind)
{
    switch (kind) {
    case TOW_DATA_DATAGRAM: return sizeof(tow_data_datagram_t);
    case TOW_DATA_FRAGMENT: return sizeof(tow_data_fragment_t);
    case TOW_DATA_CONTROL: return sizeof(tow_data_control_t);
    case TOW_DATA_GREETING: return sizeof(tow_data_greeting_t);
    case TOW_DATA_SUBFLOWS: return sizeof(tow_data_subflows_t);
    default: return 8;
    }
}

typedef struct message {
    tow_data_frame_t frame;
    uint8_t header[TOW_DATA_TRUNK_HEADER_SIZE_MAX];
    uint8_t payload[256 << 10];
} message_t;

/* Returns how much of the input it took. */
static size_t make_message(const uint8_t *bytes, size_t count, uint64_t stream,
                           const tow_region_t *region, message_t *out)
{
    const uint8_t flags = bytes[0];
    memset(&out->frame, 0, sizeof(out->frame));
    out->frame.id = flags & KIND;
    out->frame.payload_size = bytes[1];
    if (flags & LARGE_PAYLOAD) out->frame.payload_size <<= 10;
    out->frame.header_size = true_header_size(out->frame.id);
    if (!(flags & TRUE_SIZE) && count > 2) out->frame.zero = bytes[2] & 1;
    size_t taken = out->frame.header_size;
    if (taken > count - 2) taken = count - 2;
    memset(out->header, 0, sizeof(out->header));
    memcpy(out->header, bytes + 2, taken);
    if (flags & TRUE_STREAM) memcpy(out->header, &stream, 8);
    if ((flags & TRUE_REGION) && out->frame.id == TOW_DATA_FRAGMENT) {
        memcpy(out->header + 16, &region->key.id, 8);
        memcpy(out->header + 24, &region->key.secret, 8);
    }
    memset(out->payload, flags, out->frame.payload_size);
    return 2 + taken;
}

static bool inject_on_trunk(tow_lane_t *lane, const message_t *message)
{
    return tow_net_data_inject(lane, &message->frame, sizeof(message->frame)) &&
           tow_net_data_inject(lane, message->header,
                               message->frame.header_size) &&
           (message->frame.payload_size == 0 ||
            tow_net_data_inject(lane, message->payload,
                                message->frame.payload_size));
}

/* In one piece: the subflow is busy afterwards. */
static bool inject_on_subflow(attack_t *attack, const message_t *message)
{
    static uint8_t bytes[sizeof(message_t)];
    const size_t head = sizeof(message->frame) + message->frame.header_size;
    memcpy(bytes, &message->frame, sizeof(message->frame));
    memcpy(bytes + sizeof(message->frame), message->header,
           message->frame.header_size);
    memcpy(bytes + head, message->payload, message->frame.payload_size);
    for (int i = 0; i < TURN_COUNT; i++) {
        if (tow_net_data_inject_striped(attack->lane, bytes,
                                        head + message->frame.payload_size))
            return true;
        turn_slowly(attack);
    }
    return false;
}

static bool inject(attack_t *attack, const message_t *message)
{
    return attack->on_subflows ? inject_on_subflow(attack, message)
                               : inject_on_trunk(attack->lane, message);
}

static attack_t begin_attack(bool on_subflows)
{
    if (security.tls == NULL) set_up();
    node_t *victim = &victims[on_subflows];
    if (victim->net == NULL) *victim = create_victim(on_subflows);
    attack_t attack = {.attacker = create_node("attacker"),
                       .victim = *victim,
                       .on_subflows = on_subflows};
    open_lane(&attack);
    return attack;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static message_t message;
    static uint8_t memory[REGION_BYTES];
    tow_region_t *region;
    const tow_region_options_t options = {.bytes = memory,
                                          .size = sizeof(memory)};
    attack_t attack = begin_attack(count > 0 && (bytes[0] & ON_SUBFLOWS));
    tow_status_t status =
        tow_env_region_open(attack.victim.env, &options, &region);
    TOW_ASSERT(status == TOW_OK);
    for (size_t at = 0, sent = 0; at + 2 <= count && sent < 16; sent++) {
        at += make_message(bytes + at, count - at, attack.stream, region,
                           &message);
        if (!inject(&attack, &message)) break;
        for (int i = 0; i < 4; i++)
            turn_slowly(&attack);
    }
    for (int i = 0; i < TURN_COUNT; i++)
        turn(&attack);
    tow_region_close(region, (tow_closed_t){0});
    tow_net_destroy(attack.attacker.net);
    for (int i = 0; i < TURN_COUNT; i++)
        tow_net_turn(attack.victim.net, 0);
    return 0;
}
