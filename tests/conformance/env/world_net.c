/* `net` in one process: all nets are driven by the test's thread, with proxies
 * for paths that break, and child processes for peers that are killed.
 * WORLD_VARIANT is the kind of address: "unix", "tcp" or "tls". With
 * TOW_DATA_STREAMS, trunks have their subflows before a test begins. */
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/data/data.h"
#include "env/net/net.h"
#include "probe.h"
#include "proxy.h"

#define NS_PER_S INT64_C(1000000000)

/* Only prevents a hang. A wait takes milliseconds, or seconds under a sanitizer
 * on a busy machine. */
#define WAIT_NS_MAX (60 * NS_PER_S)
#define SETTLE_NS   (NS_PER_S / 30)
#define IDLE_NS     (NS_PER_S / 5000)
#define SLEEP_NS    (30 * NS_PER_S)

#define PATH_SIZE 108 /* of a Unix socket */

struct world {
    bool lanes;
    size_t node_count;
    size_t first;                          /* to drive in the next step */
    tow_net_t *nets[WORLD_NODE_COUNT_MAX]; /* NULL: closed */
    bool is_stalled[WORLD_NODE_COUNT_MAX];
    bool is_closing[WORLD_NODE_COUNT_MAX];
    closed_probe_t closed[WORLD_NODE_COUNT_MAX];
    uint64_t features[WORLD_NODE_COUNT_MAX];
    int address_count;
    int64_t live_before;
    int64_t wait_end_ns;
    size_t route_count;
    struct {
        size_t from;
        size_t to;
        proxy_t proxy;
    } routes[WORLD_ROUTE_COUNT_MAX];
    pid_t victim; /* 0: none */
};

extern char **environ;

static world_t *current;

/* One of each for the whole program: files, token and certificates. */
static char folder[64];
static tow_security_t security;

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static bool is_tls(void)
{
    return strcmp(WORLD_VARIANT, "tls") == 0;
}

/* -- Files and secrets ---------------------------------------------------- */

static const char *file_in_folder(const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%s/%s", folder, name);
    return path;
}

static tow_status_t load_certificates(void)
{
    char certificate[PATH_SIZE], key[PATH_SIZE];
    tow_tls_options_t options = {
        .certificate_path = file_in_folder("certificate.pem", certificate),
        .key_path = file_in_folder("key.pem", key),
        .authority_path = certificate};
    if (access(certificate, F_OK) != 0)
        TOW_RETURN_IF_ERROR(
            tow_tls_make_self_signed(certificate, key, "127.0.0.1"));
    return tow_tls_context_create(&options, &security.tls);
}

static tow_status_t load_secrets(void)
{
    char path[PATH_SIZE];
    file_in_folder("token", path);
    security.has_token = true;
    if (access(path, F_OK) == 0)
        TOW_RETURN_IF_ERROR(tow_token_load(path, &security.token));
    else
        TOW_RETURN_IF_ERROR(tow_token_create(path, &security.token));
    return is_tls() ? load_certificates() : TOW_OK;
}

static void remove_folder(void)
{
    static const char *const names[] = {"certificate.pem", "key.pem", "token"};
    char path[PATH_SIZE];
    for (size_t i = 0; i < TOW_COUNT_OF(names); i++)
        unlink(file_in_folder(names[i], path));
    rmdir(folder);
}

/* Sockets of one world, including those left behind by listeners of a failed
 * test. */
static void remove_sockets(const world_t *world)
{
    char path[PATH_SIZE], name[32];
    for (int i = 0; i <= world->address_count; i++) {
        snprintf(name, sizeof(name), "%d", i);
        unlink(file_in_folder(name, path));
        snprintf(name, sizeof(name), "%d.host", i);
        unlink(file_in_folder(name, path));
    }
}

/* -- Creating and destroying ---------------------------------------------- */

static void refuse_link(void *context, tow_link_t *link)
{
    (void)context;
    tow_link_close(link, (tow_closed_t){0});
}

static tow_status_t listen_for_trunks(tow_env_t *env)
{
    const tow_listen_options_t options = {.address = "tls:127.0.0.1:0",
                                          .carries_lanes = true,
                                          .accept = refuse_link};
    tow_listener_t *listener;
    return tow_env_listen(env, &options, &listener);
}

static tow_status_t net_create(const char *name, uint64_t features, bool lanes,
                               tow_net_t **out_net)
{
    tow_net_options_t options = {.name = name,
                                 .features = features,
                                 .security = &security,
                                 .log = {.level = TOW_LOG_OFF},
                                 .spin_ns = -1,
                                 .data_plane = lanes ? TOW_NET_DATA_UCX
                                                     : TOW_NET_DATA_OFF};
    TOW_RETURN_IF_ERROR(tow_net_create(&options, out_net));
    return lanes && is_tls() ? listen_for_trunks(tow_net_env(*out_net))
                             : TOW_OK;
}

static void node_create(world_t *world, size_t node)
{
    tow_status_t status =
        net_create(world_node_name(node), world->features[node], world->lanes,
                   &world->nets[node]);
    if (world->lanes && tow_status_code(status) == TOW_UNIMPLEMENTED) {
        tow_status_release(status);
        world_destroy(world);
        tow_test_skip("no data plane");
    }
    must(status);
}

static void count_closed(void *context)
{
    ++*(int *)context;
}

/* Otherwise the first large write of a test would open the subflows, and go
 * over the trunk itself. */
static void open_subflows(world_t *world, size_t from, size_t to)
{
    const void *address;
    size_t size;
    uint64_t stream;
    int closed_count = 0;
    tow_lane_t *lane;
    tow_env_lane_address(world_env(world, to), &address, &size);
    const tow_lane_options_t options = {.address = address,
                                        .address_size = size};
    must(tow_env_lane_open(world_env(world, from), &options, &lane));
    WORLD_UNTIL(world, tow_net_data_is_answered(lane, &stream));
    WORLD_UNTIL(world, tow_net_data_may_stripe(lane));
    tow_lane_close(lane, TOW_LANE_CLOSE_GRACEFUL,
                   (tow_closed_t){count_closed, &closed_count});
    WORLD_UNTIL(world, closed_count == 1);
}

static void open_all_subflows(world_t *world)
{
    const char *streams = getenv("TOW_DATA_STREAMS");
    if (!world->lanes || streams == NULL || atoi(streams) == 0) return;
    for (size_t from = 0; from < world->node_count; from++)
        for (size_t to = 0; to < world->node_count; to++)
            if (from != to) open_subflows(world, from, to);
}

world_t *world_create_with(const world_options_t *options)
{
    assert_null(current);
    assert_true(options->node_count <= WORLD_NODE_COUNT_MAX);
    world_t *world = calloc(1, sizeof(*world));
    current = world;
    turn_reset();
    world->live_before = tow_alloc_live_count();
    world->lanes = options->lanes;
    for (size_t i = 0; i < options->node_count; i++) {
        world->features[i] = options->features[i];
        node_create(world, i);
        world->node_count = i + 1;
    }
    if (world->lanes && !tow_env_has_lanes(world_env(world, 0))) {
        world_destroy(world);
        tow_test_skip("no data plane");
    }
    open_all_subflows(world);
    return world;
}

static void end_victim(world_t *world)
{
    if (world->victim == 0) return;
    kill(world->victim, SIGKILL);
    waitpid(world->victim, NULL, 0);
    world->victim = 0;
}

static void close_routes(world_t *world)
{
    for (size_t i = 0; i < world->route_count; i++)
        proxy_close(&world->routes[i].proxy);
    world->route_count = 0;
}

void world_destroy(world_t *world)
{
    for (size_t i = 0; i < world->node_count; i++) {
        world->is_stalled[i] = false;
        if (world->nets[i] != NULL && !world->is_closing[i])
            world_begin_close(world, i);
    }
    for (size_t i = 0; i < world->node_count; i++)
        WORLD_UNTIL(world, world_is_closed(world, i));
    for (size_t i = 0; i < world->node_count; i++) {
        if (world->nets[i] != NULL) tow_net_destroy(world->nets[i]);
    }
    end_victim(world);
    close_routes(world);
    remove_sockets(world);
    int64_t leaked = tow_alloc_live_count() - world->live_before;
    free(world);
    current = NULL;
    if (leaked != 0) fail_msg("%lld blocks leaked", (long long)leaked);
}

int world_tear_down(void **state)
{
    turn_reset();
    if (current == NULL) return 0;
    end_victim(current);
    close_routes(current);
    remove_sockets(current);
    current = NULL;
    return 0;
}

bool world_can(const world_t *world, world_ability_t ability)
{
    return ability == WORLD_THREADS || ability == WORLD_CORRUPTION;
}

void world_require(world_t *world, world_ability_t ability)
{
    if (world_can(world, ability)) return;
    world_destroy(world);
    tow_test_skip("real time");
}

/* -- Nodes ---------------------------------------------------------------- */

tow_env_t *world_env(world_t *world, size_t node)
{
    tow_net_t *net = world->nets[node];
    return net == NULL ? NULL : tow_net_env(net);
}

void world_begin_close(world_t *world, size_t node)
{
    tow_env_t *env = world_env(world, node);
    world->is_closing[node] = true;
    call_enter();
    tow_env_close(env, closed_probe(&world->closed[node], env));
    call_leave();
}

bool world_is_closed(const world_t *world, size_t node)
{
    return world->closed[node].count == 1;
}

void world_close_node(world_t *world, size_t node)
{
    world_begin_close(world, node);
    WORLD_UNTIL(world, world_is_closed(world, node));
    assert_true(tow_net_is_closed(world->nets[node]));
    tow_net_destroy(world->nets[node]);
    world->nets[node] = NULL;
}

void world_revive_node(world_t *world, size_t node)
{
    assert_null(world->nets[node]);
    turn_reset();
    world->is_closing[node] = false;
    world->closed[node] = (closed_probe_t){0};
    node_create(world, node);
}

void world_stall(world_t *world, size_t node)
{
    world->is_stalled[node] = true;
}

void world_resume(world_t *world, size_t node)
{
    world->is_stalled[node] = false;
}

/* -- Driving the nodes ---------------------------------------------------- */

static bool turn_node(world_t *world, size_t node, int64_t max_wait_ns)
{
    if (world->nets[node] == NULL || world->is_stalled[node]) return false;
    return tow_net_turn(world->nets[node], max_wait_ns);
}

void world_step(world_t *world)
{
    bool happened = false;
    size_t first = world->first++;
    for (size_t i = 0; i < world->node_count; i++)
        happened |= turn_node(world, (first + i) % world->node_count, 0);
    for (size_t i = 0; i < world->route_count; i++)
        happened |= proxy_turn(&world->routes[i].proxy);
    if (happened) return;
    for (size_t i = 0; i < world->node_count; i++) {
        size_t node = (first + i) % world->node_count;
        if (world->nets[node] == NULL || world->is_stalled[node]) continue;
        turn_node(world, node, IDLE_NS);
        return;
    }
    usleep(IDLE_NS / 1000); /* No node can be driven: only a child is alive. */
}

void world_wait_begin(world_t *world)
{
    world->wait_end_ns = clock_ns() + WAIT_NS_MAX;
}

void world_wait_step(world_t *world, const char *condition, const char *file,
                     int line)
{
    if (clock_ns() > world->wait_end_ns)
        fail_msg("%s:%d: waited for \"%s\" in vain", file, line, condition);
    world_step(world);
}

void world_settle(world_t *world)
{
    int64_t end_ns = clock_ns() + SETTLE_NS;
    for (int i = 0; i < 50 || clock_ns() < end_ns; i++)
        world_step(world);
}

void world_sleep(world_t *world, size_t node)
{
    int64_t begin_ns = clock_ns();
    tow_net_turn(world->nets[node], SLEEP_NS);
    if (clock_ns() - begin_ns >= SLEEP_NS) fail_msg("nothing woke the node");
}

/* -- Paths ---------------------------------------------------------------- */

const char *world_listen_address(world_t *world, size_t node,
                                 char address[WORLD_ADDRESS_SIZE])
{
    if (strcmp(WORLD_VARIANT, "unix") == 0)
        snprintf(address, WORLD_ADDRESS_SIZE, "unix:%s/%d", folder,
                 world->address_count++);
    else
        snprintf(address, WORLD_ADDRESS_SIZE, "%s:127.0.0.1:0", WORLD_VARIANT);
    return address;
}

const char *world_route(world_t *world, size_t from, size_t to,
                        const char *target, char address[WORLD_ADDRESS_SIZE])
{
    assert_true(world->route_count < WORLD_ROUTE_COUNT_MAX);
    char name[32], path[PATH_SIZE];
    snprintf(name, sizeof(name), "%d", world->address_count++);
    proxy_t *proxy = &world->routes[world->route_count].proxy;
    proxy_open(proxy, target, file_in_folder(name, path));
    world->routes[world->route_count].from = from;
    world->routes[world->route_count].to = to;
    world->route_count++;
    snprintf(address, WORLD_ADDRESS_SIZE, "%s", proxy->address);
    return address;
}

static void on_routes(world_t *world, size_t from, size_t to,
                      void (*act)(proxy_t *proxy))
{
    for (size_t i = 0; i < world->route_count; i++) {
        if (world->routes[i].from == from && world->routes[i].to == to)
            act(&world->routes[i].proxy);
    }
}

void world_break(world_t *world, size_t from, size_t to)
{
    on_routes(world, from, to, proxy_cut);
}

void world_mend(world_t *world, size_t from, size_t to)
{
    on_routes(world, from, to, proxy_mend);
}

/* UCX's bytes are out of our control, so the data plane itself damages the next
 * fragments that it copies into a region. A small write is one fragment per
 * attempt, so a high fraction outlasts all attempts. */
void world_corrupt(world_t *world, uint32_t parts_per_million)
{
    for (size_t i = 0; i < world->node_count; i++)
        tow_net_data_damage(world->nets[i], parts_per_million / 60000);
}

/* -- Victims -------------------------------------------------------------- */

/* A program of its own rather than a fork: this process has threads, and the
 * data plane does not survive a fork. */
void world_spawn(world_t *world, const char *role, const char *address)
{
    assert_int_equal(world->victim, 0);
    char *arguments[] = {
        "env_conformance", "--victim", (char *)role, (char *)address,
        (char *)folder,    NULL,       NULL};
    if (world->lanes) arguments[5] = "lanes";
    assert_int_equal(posix_spawn(&world->victim, "/proc/self/exe", NULL, NULL,
                                 arguments, environ),
                     0);
}

void world_kill(world_t *world)
{
    assert_int_not_equal(world->victim, 0);
    end_victim(world);
}

/* Runs until it is killed, or the test ends. */
static int victim_main(int argc, char **argv)
{
    TOW_ASSERT(argc >= 5);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(folder, sizeof(folder), "%s", argv[4]);
    TOW_ASSERT(load_secrets() == TOW_OK);
    tow_net_t *net;
    TOW_ASSERT(net_create(VICTIM_NAME, 0, argc > 5, &net) == TOW_OK);
    victim_role_find(argv[2])->boot(tow_net_env(net), argv[3]);
    tow_net_run(net);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--victim") == 0)
        return victim_main(argc, argv);
    snprintf(folder, sizeof(folder), "/tmp/tow-conformance-XXXXXX");
    TOW_ASSERT(mkdtemp(folder) != NULL);
    tow_status_t status = load_secrets();
    if (status != TOW_OK) {
        fprintf(stderr, "%s\n", tow_status_message(status));
        return 1;
    }
    int result = conformance_main(argc, argv);
    tow_tls_context_destroy(security.tls);
    remove_folder();
    /* Worlds of failed tests are still open, which UCX's destructors do not
     * survive. */
    if (result != 0) _exit(result);
    return result;
}
