/* Set-up of UCX: shared memory on this host; and a network only if the operator
 * says that it is trusted, because UCX neither encrypts nor authenticates, and
 * opens a listener. Every key below was tested with UCX 1.13.1; the comment
 * beside it says what happens without it. With a trusted network, UCX_TLS and
 * UCX_NET_DEVICES in the environment take precedence over ours; the code relies
 * on the other keys. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucs/debug/debug.h>

#include "env/net/data/data_impl.h"

/* System V shared memory, which needs no file system: containers have a small
 * /dev/shm, or none. */
#define HOST_TRANSPORTS "sysv,self"
#define TCP_TRANSPORTS  "sysv,self,tcp"
#define RDMA_TRANSPORTS "sysv,self,tcp,rc,ud,dc"

/* -- Settings ------------------------------------------------------------- */

static tow_status_t set(ucp_config_t *config, const char *key,
                        const char *value)
{
    ucs_status_t result = ucp_config_modify(config, key, value);
    if (result == UCS_OK) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "UCX refuses %s=%s: %s", key, value,
                     ucs_status_string(result));
}

static bool is_among(const char *item, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (strcmp(item, names[i]) == 0) return true;
    return false;
}

#define LIST_SIZE 256

/* Counts the items of a list such as "sysv,self,tcp" that are, or are not,
 * among `names`. */
static size_t count_items(const char *list, const char *const *names,
                          bool among)
{
    char copy[LIST_SIZE];
    snprintf(copy, sizeof(copy), "%s", list);
    size_t count = 0;
    char *rest = NULL;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL;
         item = strtok_r(NULL, ",", &rest))
        count += is_among(item, names) == among;
    return count;
}

/* Lists that start with '^' exclude their items; "all" is every item. */
static bool names_any(const char *list, const char *const *names)
{
    static const char *const all[] = {"all", NULL};
    return list[0] == '^' || count_items(list, all, true) > 0 ||
           count_items(list, names, true) > 0;
}

static bool names_only(const char *list, const char *const *names)
{
    return strlen(list) < LIST_SIZE && count_items(list, names, false) == 0;
}

static bool is_rdma_device(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%.*s",
             (int)strcspn(name, ":"), name);
    return access(path, F_OK) == 0;
}

static const char *default_transports(const char *trusted)
{
    char copy[LIST_SIZE];
    if (trusted == NULL) return HOST_TRANSPORTS;
    snprintf(copy, sizeof(copy), "%s", trusted);
    char *rest = NULL;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL;
         item = strtok_r(NULL, ",", &rest))
        if (is_rdma_device(item)) return RDMA_TRANSPORTS;
    return TCP_TRANSPORTS;
}

static tow_status_t choose_transports(tow_data_t *data, ucp_config_t *config,
                                      const char *trusted)
{
    static const char *const shm[] = {"sm", "shm", "mm", "sysv", "posix", NULL};
    static const char *const tcp[] = {"tcp", NULL};
    static const char *const plain[] = {"sm",  "shm",  "mm",  "sysv", "posix",
                                        "cma", "self", "tcp", NULL};
    const char *transports = trusted != NULL ? getenv("UCX_TLS") : NULL;
    if (transports == NULL) {
        transports = default_transports(trusted);
        TOW_RETURN_IF_ERROR(set(config, "TLS", transports));
    }
    data->trusts_network = trusted != NULL;
    data->uses_shm = names_any(transports, shm);
    data->uses_tcp = names_any(transports, tcp);
    data->may_send_at_once = data->uses_tcp && names_only(transports, plain);
    return TOW_OK;
}

/* UCX only warns about a missing device and continues without it. */
static tow_status_t check_device(const char *device)
{
    char name[64], path[128];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(device, ":"), device);
    if (strcmp(name, "all") == 0) return TOW_OK;
    snprintf(path, sizeof(path), "/sys/class/net/%s", name);
    if (access(path, F_OK) == 0) return TOW_OK;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s", name);
    if (access(path, F_OK) == 0) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "there is no network device '%s' on this machine; "
                     "`ucx_info -d` lists what UCX can use",
                     name);
}

static tow_status_t choose_devices(ucp_config_t *config, const char *trusted)
{
    if (trusted == NULL) return TOW_OK;
    const char *wanted = getenv("UCX_NET_DEVICES");
    if (wanted == NULL) {
        wanted = trusted;
        TOW_RETURN_IF_ERROR(set(config, "NET_DEVICES", wanted));
    }
    if (wanted[0] == '^') return TOW_OK; /* All but some. */
    char copy[LIST_SIZE];
    snprintf(copy, sizeof(copy), "%s", wanted);
    char *rest = NULL;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL;
         item = strtok_r(NULL, ",", &rest))
        TOW_RETURN_IF_ERROR(check_device(item));
    return TOW_OK;
}

static tow_status_t configure(tow_data_t *data, ucp_config_t *config,
                              const char *trusted)
{
    TOW_RETURN_IF_ERROR(choose_transports(data, config, trusted));
    TOW_RETURN_IF_ERROR(choose_devices(config, trusted));
    /* Without it, peers that must survive each other's death use TCP. Only with
     * shared memory, since UCX warns about keys that no transport uses. */
    if (data->uses_shm)
        TOW_RETURN_IF_ERROR(set(config, "MM_ERROR_HANDLING", "y"));
    if (data->uses_tcp) {
        /* A fragment is sent in one piece and immediately; see port.c. */
        TOW_RETURN_IF_ERROR(set(config, "TX_SEG_SIZE", "256k"));
        TOW_RETURN_IF_ERROR(set(config, "RX_SEG_SIZE", "256k"));
    }
    /* A rendezvous cannot always be aborted; see decision 0003. */
    TOW_RETURN_IF_ERROR(set(config, "RNDV_THRESH", "inf"));
    /* The control plane detects dead peers; and idle processes must sleep. */
    return set(config, "KEEPALIVE_INTERVAL", "inf");
}

/* -- Opening and closing -------------------------------------------------- */

static bool is_taken_by_ucx(int signal_number)
{
    struct sigaction action;
    Dl_info info;
    return sigaction(signal_number, NULL, &action) == 0 &&
           action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
           dladdr((void *)action.sa_handler, &info) != 0 &&
           info.dli_fname != NULL && strstr(info.dli_fname, "libucs") != NULL;
}

/* When it is loaded, UCX installs handlers for these signals, to print a
 * backtrace, and for one debugging signal that it cannot give back. In a user's
 * process, signals belong to the user: this restores the previous handlers,
 * once. UCX warns about signals that it does not handle: the environment may
 * have kept it from installing handlers. */
static void give_back_signals(void)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    static atomic_flag is_done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&is_done)) return;
    for (size_t i = 0; i < TOW_COUNT_OF(signals); i++)
        if (is_taken_by_ucx(signals[i])) ucs_debug_disable_signal(signals[i]);
    if (is_taken_by_ucx(SIGHUP)) signal(SIGHUP, SIG_DFL);
}

static tow_status_t open_context(tow_data_t *data, ucp_config_t *config)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
    };
    ucs_status_t result = ucp_init(&params, config, &data->context);
    if (result == UCS_OK) return TOW_OK;
    data->context = NULL;
    const char *devices = getenv("UCX_NET_DEVICES");
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "UCX does not start: %s; `ucx_info -d` shows what this "
                     "machine has, UCX_NET_DEVICES is %s",
                     ucs_status_string(result),
                     devices != NULL ? devices : "not set");
}

static tow_status_t open_worker(tow_data_t *data)
{
    const ucp_worker_params_t params = {
        .field_mask =
            UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS,
        /* Used by one thread at a time, not always the same. */
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        /* With the other transports, a peer that died with a full queue would
         * prevent UCX from ever being armed again. */
        .events = UCP_WAKEUP_RX,
    };
    ucs_status_t result =
        ucp_worker_create(data->context, &params, &data->worker);
    if (result == UCS_OK) return TOW_OK;
    data->worker = NULL;
    return TOW_ERROR(TOW_UNAVAILABLE, "UCX has no worker: %s",
                     ucs_status_string(result));
}

tow_status_t tow_data_ucx_open(tow_data_t *data, const char *trusted)
{
    ucp_config_t *config;
    give_back_signals();
    ucs_status_t result = ucp_config_read(NULL, NULL, &config);
    if (result != UCS_OK)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "UCX cannot read its configuration: %s",
                         ucs_status_string(result));
    tow_status_t status = configure(data, config, trusted);
    if (status == TOW_OK) status = open_context(data, config);
    ucp_config_release(config);
    return status == TOW_OK ? open_worker(data) : status;
}

/* Closing endpoints has left work inside UCX. */
#define LAST_PROGRESS_COUNT 100

void tow_data_ucx_close(tow_data_t *data)
{
    if (data->worker != NULL) {
        for (int i = 0; i < LAST_PROGRESS_COUNT; i++)
            ucp_worker_progress(data->worker);
        if (!tow_data_parked_end(data)) {
            /* UCX would crash the process. It is safer to leak it. */
            tow_log(&data->net->env.log, TOW_LOG_WARN,
                    "ucx cannot be closed: a peer hangs in its connection",
                    TOW_F_STR("kept", "its memory, until this process ends"));
            return;
        }
        ucp_worker_destroy(data->worker);
    }
    tow_data_parked_free(data);
    if (data->context != NULL) ucp_cleanup(data->context);
    data->worker = NULL;
    data->context = NULL;
}
