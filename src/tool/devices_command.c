/* `tow devices`: lists the devices of this host. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/vec.h"
#include "device/sim/model.h"
#include "supervisor/log_environment.h"
#include "supervisor/sync_driver.h"
#include "tool/command.h"

typedef struct devices_arguments {
    bool json;
    uint64_t device_count;
    TOW_VEC(const char *) plugins; /* of argv */
    TOW_VEC(const char *) models;
} devices_arguments_t;

static error_t parse(int key, char *argument, struct argp_state *state)
{
    devices_arguments_t *a = state->input;
    switch (key) {
    case 'j': a->json = true; return 0;
    case 'n':
        a->device_count =
            tow_command_number(state, "devices", argument, 1, 256);
        return 0;
    case 'p': return tow_vec_push(&a->plugins, argument) ? 0 : ENOMEM;
    case 's': return tow_vec_push(&a->models, argument) ? 0 : ENOMEM;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_json(const tow_driver_t *driver, const char *source,
                       const tow_device_info_t *device)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:I, s:b}", "driver", driver->name,
        "plugin", source, "platform", driver->platform, "version",
        driver->version, "id", (json_int_t)device->id, "kind", device->kind,
        "name", device->name, "memory_bytes", (json_int_t)device->memory_bytes,
        "simulated", driver->simulated);
    if (object == NULL) return;
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

static void print_text(const tow_device_info_t *device)
{
    printf("  device %" PRId64 "  %s", device->id, device->kind);
    if (strcmp(device->name, device->kind) != 0) printf("  %s", device->name);
    if (device->memory_bytes != 0)
        printf("  %.1f GiB", (double)device->memory_bytes / 1073741824.0);
    printf("\n");
}

/* Lists the devices of one driver, or says why it cannot be opened: one that fails
 * does not hide the others. */
static bool list(const devices_arguments_t *a, const char *source,
                 tow_sync_driver_options_t options)
{
    tow_sync_driver_t *session = NULL;
    options.log = tow_log_from_environment("devices");
    tow_status_t status = tow_sync_driver_open(&options, &session);
    if (status != TOW_OK) {
        fprintf(stderr, "tow devices: %s: %s\n", source,
                tow_status_message(status));
        tow_status_release(status);
        return false;
    }
    const tow_driver_t *driver = tow_sync_driver_driver(session);
    if (!a->json)
        printf("%s: driver %s, platform %s, %s%s\n", source, driver->name,
               driver->platform, driver->version,
               driver->simulated ? " (simulated)" : "");
    for (size_t i = 0; i < driver->device_count; i++) {
        if (a->json)
            print_json(driver, source, &driver->devices[i]);
        else
            print_text(&driver->devices[i]);
    }
    tow_sync_driver_close(session);
    return true;
}

static int list_all(const devices_arguments_t *a)
{
    bool ok =
        list(a, "xla_cpu",
             (tow_sync_driver_options_t){.device_count = a->device_count});
    for (size_t i = 0; i < a->plugins.count; i++)
        ok &= list(a, a->plugins.items[i],
                   (tow_sync_driver_options_t){.plugin = a->plugins.items[i]});
    for (size_t i = 0; i < a->models.count; i++)
        ok &=
            list(a, a->models.items[i],
                 (tow_sync_driver_options_t){.model = a->models.items[i],
                                             .device_count = a->device_count});
    return ok ? TOW_EXIT_OK : TOW_EXIT_FAILED;
}

int tow_command_devices(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"plugin", 'p', "PATH", 0, "List a PJRT plugin's devices too", 0},
        {"sim", 's', "MODEL", 0,
         "List a simulated device too: tpu_v3, tpu_v4, ...", 0},
        {"devices", 'n', "N", 0,
         "Number of devices of XLA on the CPU and of each model (1)", 0},
        {"json", 'j', NULL, 0, "Print one JSON object per device", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Lists the devices of this host: of XLA on the CPU, and of the given plugins and models. Exit status 1 if one of them could not be opened; the others are still listed.",
    };
    devices_arguments_t arguments = {.device_count = 1};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    int result = usage != 0 ? usage : list_all(&arguments);
    tow_vec_deinit(&arguments.plugins);
    tow_vec_deinit(&arguments.models);
    return result;
}
