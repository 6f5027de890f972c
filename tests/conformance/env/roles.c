/* A role is in static memory: in `net` a process has one, and in `sim` the node
 * that crashes must not take the test's memory with it. Roles cannot fail a
 * test, since they may be another process: on an error they abort. */
#include "roles.h"

#include <stdio.h>
#include <stdlib.h>

#include "probe.h"

typedef struct role_state {
    tow_env_t *env;
    tow_link_t *link;
    char *dialled; /* owned */
    stream_t stream;
    tow_listener_t *listener;
    uint8_t *bytes; /* owned */
    tow_region_t *region;
    lane_target_t target;
    tow_lane_t *lane;
    tow_write_t writes[WRITER_DEPTH];
} role_state_t;

static role_state_t role;

static void ignore_link(void *context, tow_link_t *link) {}

static void ignore_message(void *context, tow_link_t *link,
                           const tow_message_t *message)
{
}

static void ignore_down(void *context, tow_link_t *link, tow_status_t cause) {}

static void dial(tow_env_t *env, const char *address,
                 const tow_link_handler_t *handler)
{
    free(role.dialled);
    free(role.bytes);
    role = (role_state_t){.env = env, .dialled = strdup(address)};
    tow_connect_options_t options = {.address = role.dialled,
                                     .handler = handler};
    TOW_ASSERT(tow_env_connect(env, &options, &role.link) == TOW_OK);
}

/* -- quiet, flood --------------------------------------------------------- */

static void quiet_boot(tow_env_t *env, const char *address)
{
    static const tow_link_handler_t handler = {
        .up = ignore_link, .message = ignore_message, .down = ignore_down};
    dial(env, address, &handler);
}

#define FLOOD_BURST_COUNT_MAX 100000

static void flood_on(void *context, tow_link_t *link)
{
    TOW_ASSERT(stream_pump(&role.stream, link,
                           role.stream.next + FLOOD_BURST_COUNT_MAX) ==
               TOW_SEND_FULL);
}

static void flood_begin(void *context, tow_link_t *link)
{
    role.stream = FLOOD_STREAM;
    flood_on(context, link);
}

static void flood_boot(tow_env_t *env, const char *address)
{
    static const tow_link_handler_t handler = {.up = flood_begin,
                                               .message = ignore_message,
                                               .writable = flood_on,
                                               .down = ignore_down};
    dial(env, address, &handler);
}

/* -- host ----------------------------------------------------------------- */

static void host_accept(void *context, tow_link_t *link)
{
    static const tow_link_handler_t handler = {
        .up = ignore_link, .message = ignore_message, .down = ignore_down};
    link->handler = &handler;
}

static void host_up(void *context, tow_link_t *link)
{
    const char *address = role.listener->address;
    TOW_ASSERT(tow_link_send(link, HOST_ADDRESS, address,
                             (uint32_t)strlen(address)) == TOW_SEND_OK);
}

/* Derived from the given address: of the same kind, but its own. */
static void host_listen(tow_env_t *env)
{
    tow_address_t address;
    TOW_ASSERT(tow_address_parse(role.dialled, &address) == TOW_OK);
    char text[WORLD_ADDRESS_SIZE];
    if (address.kind == TOW_ADDRESS_UNIX)
        snprintf(text, sizeof(text), "%.200s.host", role.dialled);
    else if (address.kind == TOW_ADDRESS_SIM)
        snprintf(text, sizeof(text), "sim:" VICTIM_NAME);
    else
        snprintf(text, sizeof(text), "%.4s127.0.0.1:0", role.dialled);
    tow_listen_options_t options = {.address = text, .accept = host_accept};
    TOW_ASSERT(tow_env_listen(env, &options, &role.listener) == TOW_OK);
}

static void host_boot(tow_env_t *env, const char *address)
{
    static const tow_link_handler_t handler = {
        .up = host_up, .message = ignore_message, .down = ignore_down};
    dial(env, address, &handler);
    host_listen(env);
}

/* -- target, writer ------------------------------------------------------- */

void lane_target_of(tow_env_t *env, tow_region_key_t key, uint64_t region_size,
                    lane_target_t *out_target)
{
    const void *address;
    size_t address_size;
    tow_env_lane_address(env, &address, &address_size);
    TOW_ASSERT(address_size <= LANE_ADDRESS_SIZE_MAX);
    memset(out_target, 0, sizeof(*out_target));
    out_target->key = key;
    out_target->region_size = region_size;
    out_target->address_size = address_size;
    memcpy(out_target->address, address, address_size);
}

static void target_arrived(void *context, tow_region_t *region,
                           const tow_arrival_t *arrival)
{
    if (role.link->state != TOW_LINK_UP) return;
    TOW_ASSERT(tow_link_send(role.link, LANE_ARRIVED, arrival,
                             sizeof(*arrival)) == TOW_SEND_OK);
}

static void target_up(void *context, tow_link_t *link)
{
    lane_target_of(role.env, tow_region_key(role.region), TARGET_SIZE,
                   &role.target);
    TOW_ASSERT(tow_link_send(link, LANE_TARGET, &role.target,
                             sizeof(role.target)) == TOW_SEND_OK);
}

static void target_boot(tow_env_t *env, const char *address)
{
    static const tow_link_handler_t handler = {
        .up = target_up, .message = ignore_message, .down = ignore_down};
    dial(env, address, &handler);
    role.bytes = calloc(1, TARGET_SIZE);
    TOW_ASSERT(role.bytes != NULL);
    tow_region_options_t options = {
        .bytes = role.bytes, .size = TARGET_SIZE, .arrived = target_arrived};
    TOW_ASSERT(tow_env_region_open(env, &options, &role.region) == TOW_OK);
}

static void write_again(tow_write_t *write, tow_status_t take_status)
{
    bool ok = take_status == TOW_OK;
    tow_status_release(take_status);
    if (ok) TOW_ASSERT(tow_lane_write(role.lane, write) != TOW_SEND_DOWN);
}

static void lane_down(void *context, tow_lane_t *lane, tow_status_t cause) {}

static void begin_writing(void *context, tow_link_t *link,
                          const tow_message_t *message)
{
    TOW_ASSERT(message->type == LANE_TARGET);
    memcpy(&role.target, message->bytes, sizeof(role.target));
    role.bytes = malloc(role.target.region_size);
    TOW_ASSERT(role.bytes != NULL);
    pattern_fill(role.bytes, role.target.region_size, 1);
    tow_lane_options_t options = {.address = role.target.address,
                                  .address_size = role.target.address_size,
                                  .peer_name = "test",
                                  .down = lane_down};
    TOW_ASSERT(tow_env_lane_open(role.env, &options, &role.lane) == TOW_OK);
    for (uint64_t i = 0; i < WRITER_DEPTH; i++) {
        role.writes[i] = (tow_write_t){.bytes = role.bytes,
                                       .size = role.target.region_size,
                                       .key = role.target.key,
                                       .tag = i,
                                       .done = write_again};
        TOW_ASSERT(tow_lane_write(role.lane, &role.writes[i]) == TOW_SEND_OK);
    }
}

static void writer_up(void *context, tow_link_t *link)
{
    lane_target_t self;
    lane_target_of(role.env, (tow_region_key_t){0}, 0, &self);
    TOW_ASSERT(tow_link_send(link, LANE_TARGET, &self, sizeof(self)) ==
               TOW_SEND_OK);
}

static void writer_boot(tow_env_t *env, const char *address)
{
    static const tow_link_handler_t handler = {
        .up = writer_up, .message = begin_writing, .down = ignore_down};
    dial(env, address, &handler);
}

const victim_role_t victim_roles[] = {
    {"quiet", quiet_boot},   {"flood", flood_boot},   {"host", host_boot},
    {"target", target_boot}, {"writer", writer_boot},
};
const size_t victim_role_count = TOW_COUNT_OF(victim_roles);

const victim_role_t *victim_role_find(const char *name)
{
    for (size_t i = 0; i < victim_role_count; i++) {
        if (strcmp(victim_roles[i].name, name) == 0) return &victim_roles[i];
    }
    TOW_UNREACHABLE();
}
