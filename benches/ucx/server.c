// The server: replies with what came.

#include "echo.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void on_replied(void *request, ucs_status_t status, void *user_data)
{
    struct call *call = user_data;
    check("a reply", status);
    if (call->held != NULL) {
        ucp_am_data_release(worker, call->held);
    }
    ucp_request_free(request);
    free_call(call);
}

// Returns whether UCX still needs the bytes.
static int reply(struct call *call, const void *data)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_replied,
        .user_data = call,
    };
    ucs_status_ptr_t sent = ucp_am_send_nbx(call->reply_to, REPLY, &call->header, sizeof call->header,
                                            data, call->length, &how);
    if (UCS_PTR_IS_ERR(sent)) {
        fail("cannot reply", UCS_PTR_STATUS(sent));
    }
    if (sent == NULL) {
        free_call(call);
    }
    return sent != NULL;
}

static void on_request_pulled(void *request, ucs_status_t status, size_t length, void *user_data)
{
    struct call *call = user_data;
    (void)length;
    check("a request by rendezvous", status);
    if (request != NULL) {
        ucp_request_free(request);
    }
    call->held = NULL;
    reply(call, call->buffer);
}

ucs_status_t on_request(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *how)
{
    (void)arg;
    if (header_length != sizeof(struct header) || length > size) {
        fail("a request of another length", UCS_ERR_INVALID_PARAM);
    }
    struct call *call = take_call();
    memcpy(&call->header, header, sizeof call->header);
    call->reply_to = how->reply_ep;
    call->length = length;
    if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        pull(call, data, on_request_pulled);
        return UCS_INPROGRESS;
    }
    if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) {
        // UCX lends the bytes: the reply is sent from where they are.
        call->held = data;
        return reply(call, data) ? UCS_INPROGRESS : UCS_OK;
    }
    call->held = NULL;
    memcpy(call->buffer, data, length);
    reply(call, call->buffer);
    return UCS_OK;
}

// At the end: more than UCX needs to see what has arrived, and some milliseconds.
enum { LAST_TURNS = 1 << 18 };

enum { WORK, REST, QUIT };

static atomic_int order = WORK;
static pthread_mutex_t order_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t order_changed = PTHREAD_COND_INITIALIZER;

static void give_order(int what)
{
    pthread_mutex_lock(&order_mutex);
    atomic_store(&order, what);
    pthread_cond_signal(&order_changed);
    pthread_mutex_unlock(&order_mutex);
}

static void *read_orders(void *unused)
{
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        give_order(strncmp(line, "rest", 4) == 0 ? REST : WORK);
    }
    give_order(QUIT);
    return unused;
}

void serve(void)
{
    ucp_address_t *address;
    size_t length;
    check("the worker's address", ucp_worker_get_address(worker, &address, &length));
    printf("ready ");
    for (size_t byte = 0; byte < length; byte++) {
        printf("%02x", ((unsigned char *)address)[byte]);
    }
    printf("\n");
    fflush(stdout);
    ucp_worker_release_address(worker, address);
    pthread_t reader;
    if (pthread_create(&reader, NULL, read_orders, NULL) != 0) {
        fail("cannot start a thread", UCS_ERR_NO_RESOURCE);
    }
    while (1) {
        int now = atomic_load_explicit(&order, memory_order_relaxed);
        if (now == WORK) {
            ucp_worker_progress(worker);
            continue;
        }
        if (now == QUIT) {
            break;
        }
        pthread_mutex_lock(&order_mutex);
        while (atomic_load(&order) == REST) {
            pthread_cond_wait(&order_changed, &order_mutex);
        }
        pthread_mutex_unlock(&order_mutex);
    }
    pthread_join(reader, NULL);
    // The client has its answers, but UCX may not know yet.
    for (int turn = 0; free_count < call_count && turn < LAST_TURNS; turn++) {
        ucp_worker_progress(worker);
    }
}
