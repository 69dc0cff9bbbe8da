/* Keeps several requests in flight, in an event loop, and cancels one: pipelined URL [REQUESTS]
 *
 * Each request has a slot of the region; an answer gives its slot back for the next one. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <rowmill.h>

enum { SLOTS = 4, BAGS = 64, IDS = 8 };

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: pipelined URL [REQUESTS]\n");
        return 2;
    }
    long requests = argc > 2 ? atol(argv[2]) : 1000;
    rowmill_options options = {.size = sizeof options, .name = "pipelined", .credits = SLOTS};
    rowmill_client *client;
    must(rowmill_connect(argv[1], &options, &client), "connect");
    rowmill_feature feature = {.size = sizeof feature, .pooling = ROWMILL_SUM, .name = "clicked", .table = "items"};
    rowmill_schema *schema;
    must(rowmill_bind(client, &feature, 1, BAGS, &schema), "bind");
    uint64_t bytes;
    must(rowmill_answer_bytes(schema, BAGS, &bytes), "answer_bytes");
    rowmill_region *region;
    void *memory;
    must(rowmill_region_create(client, SLOTS * bytes, &region, &memory), "region_create");
    int fd;
    must(rowmill_notify_fd(client, &fd), "notify_fd");

    rowmill_ticket tickets[SLOTS] = {0}; /* 0: the slot is free */
    uint32_t ids[BAGS * IDS], lengths[BAGS];
    for (int bag = 0; bag < BAGS; bag++)
        lengths[bag] = IDS;
    rowmill_jagged part = {.size = sizeof part, .ids = ids, .n_ids = BAGS * IDS, .id_bits = 32,
                           .lengths = lengths, .n_divisions = BAGS, .division_bits = 32};
    rowmill_batch batch = {.size = sizeof batch, .bags = BAGS, .parts = &part, .n_parts = 1};

    long sent = 0, done = 0, cancelled = 0, in_flight = 0, most = 0;
    while (done + cancelled < requests) {
        /* Send as long as there is a free slot. The ids are copied, so that the array is ours again. */
        for (int slot = 0; slot < SLOTS && sent < requests; slot++) {
            if (tickets[slot] != 0)
                continue;
            for (int i = 0; i < BAGS * IDS; i++)
                ids[i] = (uint32_t)(sent * 31 + i * 7) % 100000;
            rowmill_target target = {.size = sizeof target, .region = region, .offset = slot * bytes};
            int status = rowmill_submit(client, schema, &batch, &target, NULL, &tickets[slot]);
            if (status == ROWMILL_AGAIN)
                break; /* fewer credits were granted than asked for */
            must(status, "submit");
            sent++;
            if (++in_flight > most)
                most = in_flight;
            if (sent == requests / 2)
                must(rowmill_cancel(client, tickets[slot]), "cancel");
        }
        /* Sleep until something is there, then take all that is. */
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 10 * 1000) == 0) {
            fprintf(stderr, "nothing came for 10 s\n");
            return EXIT_FAILURE;
        }
        for (;;) {
            rowmill_answer answer = {.size = sizeof answer};
            int got;
            must(rowmill_poll(client, &answer, &got), "poll");
            if (!got)
                break;
            in_flight--;
            for (int slot = 0; slot < SLOTS; slot++)
                if (tickets[slot] == answer.ticket)
                    tickets[slot] = 0; /* its vectors, at slot * bytes, would be used before this */
            if (answer.status == ROWMILL_CANCELLED)
                cancelled++;
            else {
                must(answer.status, "answer");
                done++;
            }
        }
    }
    /* A request may be waited for in person all the same; the descriptor stays good for those that are not. */
    rowmill_target target = {.size = sizeof target, .region = region};
    rowmill_ticket ticket;
    rowmill_answer answer = {.size = sizeof answer};
    for (int i = 0; i < 100; i++) {
        must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
        must(rowmill_wait(client, ticket, -1, &answer), "wait");
    }
    must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
    for (int got = 0; !got;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 10 * 1000) == 0) {
            fprintf(stderr, "nothing came for 10 s\n");
            return EXIT_FAILURE;
        }
        must(rowmill_poll(client, &answer, &got), "poll");
    }
    must(answer.status, "answer");
    printf("%ld answered, %ld cancelled, at most %ld in flight\n", done, cancelled, most);

    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    return EXIT_SUCCESS;
}
