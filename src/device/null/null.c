#include "device/null/null.h"

#include "base/alloc.h"
#include "base/assert.h"

typedef struct null_driver {
    tow_driver_t driver;
    tow_post_t closing; /* ends it in a turn of its own */
    tow_closed_t closed;
} null_driver_t;

static void finish_close(tow_post_t *post)
{
    null_driver_t *self = TOW_CONTAINER_OF(post, null_driver_t, closing);
    const tow_closed_t closed = self->closed;
    tow_free(self);
    if (closed.run != NULL) closed.run(closed.context);
}

static void null_close(tow_driver_t *driver, tow_closed_t closed)
{
    null_driver_t *self = TOW_CONTAINER_OF(driver, null_driver_t, driver);
    TOW_ASSERT(self->closing.run == NULL); /* Closed once. */
    self->closed = closed;
    self->closing.run = finish_close;
    tow_env_post(driver->env, &self->closing);
}

static const tow_driver_ops_t null_ops = {
    .close = null_close,
    .memory_stats = NULL,
    .compile = NULL,
    .load = NULL,
    .serialize = NULL,
    .executable_retain = NULL,
    .executable_release = NULL,
    .allocate = NULL,
    .upload = NULL,
    .upload_settle = NULL,
    .download = NULL,
    .share = NULL,
    .share_end = NULL,
    .copy = NULL,
    .buffer_state = NULL,
    .buffer_error = NULL,
    .buffer_address = NULL,
    .buffer_retain = NULL,
    .buffer_release = NULL,
    .run = NULL,
    .abort = NULL,
};

tow_status_t tow_null_open(tow_env_t *env, tow_driver_t **out_driver)
{
    *out_driver = NULL;
    null_driver_t *self = tow_calloc(1, sizeof(*self));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    self->driver = (tow_driver_t){
        .ops = &null_ops,
        .env = env,
        .name = "null",
        .platform = "none",
        .version = "",
    };
    *out_driver = &self->driver;
    return TOW_OK;
}
