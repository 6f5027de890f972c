/* Loans of bytes in host memory.
 *
 * Our own plugin's memory is the host's: a loan is a reference that keeps it, and
 * a run that would overwrite it works on a copy. Others refuse to donate what is
 * referred to from outside, so from them the bytes are copied to the host. */
#include "base/alloc.h"
#include "device/pjrt/pjrt_impl.h"

typedef struct loan {
    pjrt_completion_t completion;
    pjrt_buffer_t *buffer; /* counted */
    void *copy;            /* owned; NULL: the loan is a reference */
    bool is_lent;          /* on, to another process */
} loan_t;

_Static_assert(sizeof(loan_t) <= sizeof(((tow_borrow_t *)0)->private_),
               "a loan fits into its operation");

static loan_t *loan_of(tow_borrow_t *borrow)
{
    return (loan_t *)(void *)borrow->private_;
}

static tow_borrow_t *borrow_of(pjrt_completion_t *completion)
{
    loan_t *loan = TOW_CONTAINER_OF(completion, loan_t, completion);
    return TOW_CONTAINER_OF(loan, tow_borrow_t, private_);
}

/* -- References ------------------------------------------------------------- */

static bool can_refer(const pjrt_driver_t *driver)
{
    const PJRT_Api *api = &driver->plugin.api;
    return driver->plugin.xla != NULL && api->PJRT_Buffer_ReadyEvent != NULL &&
           api->PJRT_Buffer_IncreaseExternalReferenceCount != NULL &&
           api->PJRT_Buffer_DecreaseExternalReferenceCount != NULL &&
           api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer != NULL;
}

static PJRT_Error *refer(const pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    PJRT_Buffer_IncreaseExternalReferenceCount_Args args =
        PJRT_ARGS(PJRT_Buffer_IncreaseExternalReferenceCount, .buffer = handle);
    return driver->plugin.api.PJRT_Buffer_IncreaseExternalReferenceCount(&args);
}

static void stop_referring(const pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    PJRT_Buffer_DecreaseExternalReferenceCount_Args args =
        PJRT_ARGS(PJRT_Buffer_DecreaseExternalReferenceCount, .buffer = handle);
    tow_pjrt_error_drop(
        &driver->plugin,
        driver->plugin.api.PJRT_Buffer_DecreaseExternalReferenceCount(&args));
}

static tow_status_t find_bytes(const pjrt_driver_t *driver,
                               const pjrt_buffer_t *buffer,
                               const void **out_bytes)
{
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args args = PJRT_ARGS(
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer, .buffer = buffer->handle);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver,
        driver->plugin.api.PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&args),
        buffer->buffer.device));
    *out_bytes = args.device_memory_ptr;
    return TOW_OK;
}

/* -- The end ---------------------------------------------------------------- */

static void end_loan(pjrt_driver_t *driver, tow_borrow_t *borrow,
                     tow_status_t take_status)
{
    tow_pjrt_buffer_release(&loan_of(borrow)->buffer->buffer);
    borrow->bytes = NULL;
    borrow->done(borrow, take_status);
    tow_pjrt_end(driver);
}

/* False if the producer's error is still to be told: it says where it began. */
static bool take_error(pjrt_completion_t *completion, pjrt_buffer_t *buffer,
                       tow_status_t *out_status)
{
    *out_status = TOW_OK;
    if (completion->error == NULL && buffer->error == TOW_OK &&
        buffer->handle != NULL)
        return true;
    if (tow_pjrt_buffer_await(buffer, completion)) return false;
    tow_status_t status = tow_pjrt_device_status(
        completion->driver, completion->error, buffer->buffer.device);
    completion->error = NULL;
    if (buffer->error != TOW_OK) {
        tow_status_ignore(status, "the producer's error came first");
        status = tow_status_retain(buffer->error);
    }
    *out_status = status;
    return true;
}

/* The value may be there before we have been told of the end of its run. */
static void finish_reference(pjrt_completion_t *completion)
{
    tow_borrow_t *borrow = borrow_of(completion);
    pjrt_buffer_t *buffer = loan_of(borrow)->buffer;
    pjrt_driver_t *driver = completion->driver;
    tow_status_t status;
    if (!take_error(completion, buffer, &status)) return;
    if (status == TOW_OK) status = find_bytes(driver, buffer, &borrow->bytes);
    if (status == TOW_OK) {
        borrow->done(borrow, TOW_OK);
        return;
    }
    stop_referring(driver, buffer->handle);
    end_loan(driver, borrow, status);
}

static void finish_copy(pjrt_completion_t *completion)
{
    tow_borrow_t *borrow = borrow_of(completion);
    loan_t *loan = loan_of(borrow);
    tow_status_t status;
    if (!take_error(completion, loan->buffer, &status)) return;
    if (status == TOW_OK) {
        borrow->bytes = loan->copy;
        borrow->done(borrow, TOW_OK);
        return;
    }
    tow_free(loan->copy);
    end_loan(completion->driver, borrow, status);
}

/* -- The beginning ---------------------------------------------------------- */

static void watch_value(pjrt_driver_t *driver, loan_t *loan)
{
    const pjrt_buffer_t *buffer = loan->buffer;
    if (buffer->is_resolved) {
        tow_pjrt_complete_soon(&loan->completion, NULL);
        return;
    }
    PJRT_Buffer_ReadyEvent_Args args =
        PJRT_ARGS(PJRT_Buffer_ReadyEvent, .buffer = buffer->handle);
    PJRT_Error *error = driver->plugin.api.PJRT_Buffer_ReadyEvent(&args);
    if (error != NULL)
        tow_pjrt_complete_soon(&loan->completion, error);
    else
        tow_pjrt_watch(&loan->completion, args.event);
}

static tow_status_t begin_reference(pjrt_driver_t *driver, loan_t *loan)
{
    loan->completion.finish = finish_reference;
    TOW_RETURN_IF_ERROR(
        tow_pjrt_device_status(driver, refer(driver, loan->buffer->handle),
                               loan->buffer->buffer.device));
    watch_value(driver, loan);
    return TOW_OK;
}

static tow_status_t begin_copy(loan_t *loan)
{
    uint64_t size;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&loan->buffer->buffer.shape, &size));
    loan->completion.finish = finish_copy;
    loan->copy = tow_malloc(size > 0 ? (size_t)size : 1);
    if (loan->copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_pjrt_read(loan->buffer, loan->copy, size, &loan->completion);
    return TOW_OK;
}

tow_status_t tow_pjrt_borrow(tow_driver_t *base, tow_borrow_t *borrow)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    loan_t *loan = loan_of(borrow);
    *loan = (loan_t){.completion = {.driver = driver},
                     .buffer = pjrt_buffer_of(borrow->buffer)};
    loan->buffer->reference_count++;
    driver->operation_count++;
    const bool is_reference = can_refer(driver) && loan->buffer->handle != NULL;
    tow_status_t status =
        is_reference ? begin_reference(driver, loan) : begin_copy(loan);
    if (status == TOW_OK) return TOW_OK;
    loan->buffer->reference_count--; /* The caller has one. */
    driver->operation_count--;
    return status;
}

bool tow_pjrt_borrow_lend(tow_driver_t *base, tow_borrow_t *borrow)
{
    const tow_xla_extension_t *xla = pjrt_driver_of(base)->plugin.xla;
    loan_t *loan = loan_of(borrow);
    if (xla == NULL || xla->lend == NULL || loan->copy != NULL) return false;
    TOW_ASSERT(!loan->is_lent);
    loan->is_lent = true;
    loan->buffer->lent_count++;
    xla->lend(loan->buffer->handle, 1);
    tow_pjrt_buffer_release(&loan->buffer->buffer); /* The caller's. */
    return true;
}

void tow_pjrt_borrow_give_back(tow_driver_t *base, tow_borrow_t *borrow)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    loan_t *loan = loan_of(borrow);
    if (loan->is_lent) {
        driver->plugin.xla->lend(loan->buffer->handle, 0);
        loan->buffer->lent_count--;
    }
    if (loan->copy == NULL) stop_referring(driver, loan->buffer->handle);
    tow_free(loan->copy);
    tow_pjrt_buffer_release(&loan->buffer->buffer);
    tow_pjrt_end(driver);
}
