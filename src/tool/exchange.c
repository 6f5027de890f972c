#include "tool/exchange.h"

#include "tool/exchange_impl.h"

void exchange_violate(tow_exchange_t *exchange, tow_status_t take_status)
{
    if (exchange->violation == TOW_OK)
        exchange->violation = take_status;
    else
        tow_status_ignore(take_status, "only the first violation is kept");
}

static tow_status_t start_listening(tow_exchange_t *exchange)
{
    if (exchange->options.listen_address == NULL) return TOW_OK;
    tow_listen_options_t listen = {.address = exchange->options.listen_address,
                                   .accept = exchange_receiver_accept,
                                   .context = exchange};
    return tow_env_listen(exchange->env, &listen, &exchange->listener);
}

static tow_status_t start_dialling(tow_exchange_t *exchange)
{
    for (size_t i = 0; i < exchange->options.dial_count; i++) {
        exchange_sender_t *sender = NULL;
        TOW_RETURN_IF_ERROR(exchange_sender_create(
            exchange, exchange->options.dial_addresses[i], i, &sender));
        if (!tow_vec_push(&exchange->senders, sender)) {
            exchange_sender_destroy(sender);
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        }
        exchange->unfinished_count++;
    }
    return TOW_OK;
}

tow_status_t tow_exchange_create(tow_env_t *env,
                                 const tow_exchange_options_t *options,
                                 tow_exchange_t **out_exchange)
{
    *out_exchange = NULL;
    if (options->payload_size < 16 ||
        options->payload_size > TOW_EXCHANGE_PAYLOAD_SIZE_MAX ||
        (options->block_count > 0 && options->block_size < 16))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "payloads and blocks have 16 bytes at least");
    if (options->block_count > 0 && !tow_env_has_lanes(env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "blocks need a data plane, and there is none");
    tow_exchange_t *exchange = tow_calloc(1, sizeof(*exchange));
    if (exchange == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    exchange->env = env;
    exchange->options = *options;
    tow_arena_init(&exchange->arena, EXCHANGE_ARENA_BYTES_MAX);
    tow_list_init(&exchange->receivers);
    tow_list_init(&exchange->streams);
    tow_status_t status = start_listening(exchange);
    if (status == TOW_OK) status = start_dialling(exchange);
    exchange->options.dial_addresses = NULL; /* They were lent for the call. */
    if (status != TOW_OK) {
        tow_exchange_destroy(exchange);
        return tow_status_annotate(status, "starting the exchange");
    }
    *out_exchange = exchange;
    return TOW_OK;
}

void tow_exchange_destroy(tow_exchange_t *exchange)
{
    if (exchange == NULL) return;
    for (size_t i = 0; i < exchange->senders.count; i++)
        exchange_sender_destroy(exchange->senders.items[i]);
    tow_vec_deinit(&exchange->senders);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&exchange->receivers)) != NULL)
        exchange_receiver_destroy(
            TOW_CONTAINER_OF(item, exchange_receiver_t, all));
    while ((item = tow_list_pop_front(&exchange->streams)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, exchange_stream_t, all));
    tow_names_deinit(&exchange->streams_by_name);
    tow_arena_deinit(&exchange->arena);
    tow_status_release(exchange->violation);
    tow_free(exchange);
}

const char *tow_exchange_address(const tow_exchange_t *exchange)
{
    return exchange->listener != NULL ? exchange->listener->address : NULL;
}

const tow_exchange_stats_t *tow_exchange_stats(const tow_exchange_t *exchange)
{
    return &exchange->stats;
}

void *tow_exchange_context(const tow_exchange_t *exchange)
{
    return exchange->options.context;
}

bool tow_exchange_is_finished(const tow_exchange_t *exchange)
{
    return exchange->unfinished_count == 0;
}

tow_status_t tow_exchange_violation(const tow_exchange_t *exchange)
{
    return exchange->violation;
}

static tow_status_t check_sender(const tow_exchange_t *exchange,
                                 const exchange_sender_t *sender)
{
    uint64_t count = exchange->options.message_count;
    if (sender->acknowledged > sender->sent_once ||
        sender->next_sequence > sender->sent_once || sender->sent_once > count)
        return TOW_ERROR(TOW_INTERNAL,
                         "stream %llu: acknowledged %llu, next %llu, sent %llu "
                         "of %llu",
                         (unsigned long long)sender->stream,
                         (unsigned long long)sender->acknowledged,
                         (unsigned long long)sender->next_sequence,
                         (unsigned long long)sender->sent_once,
                         (unsigned long long)count);
    if (sender->next_sequence > sender->acknowledged + EXCHANGE_WINDOW)
        return TOW_ERROR(TOW_INTERNAL, "stream %llu: the window is exceeded",
                         (unsigned long long)sender->stream);
    return TOW_OK;
}

tow_status_t tow_exchange_check(const tow_exchange_t *exchange)
{
    if (exchange->violation != TOW_OK)
        return tow_status_retain(exchange->violation);
    for (size_t i = 0; i < exchange->senders.count; i++)
        TOW_RETURN_IF_ERROR(check_sender(exchange, exchange->senders.items[i]));
    return TOW_OK;
}
