/*
 * How fast the broker itself confirms: persistent, mandatory messages of 1 KiB to a topic exchange with one queue, through
 * librabbitmq, pipelined.
 *
 *     publish_limit HOST PORT USER PASSWORD VHOST MESSAGES
 *
 * At most WINDOW publishes are without an answer at a time, as in Leveret. Prints {"per_second": …}.
 */
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define WINDOW 1000
#define BODY 1024
/* Answers are looked for once in so many publishes: a look costs a system call. */
#define LOOK_EVERY 32

static void die(const char *what) {
  fprintf(stderr, "publish_limit: %s\n", what);
  exit(1);
}

static void expect(amqp_rpc_reply_t reply, const char *what) {
  if (reply.reply_type != AMQP_RESPONSE_NORMAL) die(what);
}

/* Reads one frame and returns the tag up to which all is confirmed; waits only where *wait* says so. */
static uint64_t answered(amqp_connection_state_t connection, uint64_t known, int wait, int *found) {
  amqp_frame_t frame;
  struct timeval now = {0, 0};
  amqp_maybe_release_buffers(connection);
  int status = amqp_simple_wait_frame_noblock(connection, &frame, wait ? NULL : &now);
  *found = 0;
  if (status == AMQP_STATUS_TIMEOUT) return known;
  if (status != AMQP_STATUS_OK) die("the connection broke");
  if (frame.frame_type != AMQP_FRAME_METHOD) die("content came, where only confirms should");
  if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD) die("a message was returned or refused");
  *found = 1;
  amqp_basic_ack_t *ack = frame.payload.method.decoded;
  /* The answers come in rising order for one queue: one tag says all. */
  return ack->delivery_tag > known ? ack->delivery_tag : known;
}

int main(int count, char **arguments) {
  if (count != 7) die("publish_limit HOST PORT USER PASSWORD VHOST MESSAGES");
  uint64_t messages = strtoull(arguments[6], NULL, 10);
  amqp_connection_state_t connection = amqp_new_connection();
  amqp_socket_t *socket = amqp_tcp_socket_new(connection);
  if (!socket || amqp_socket_open(socket, arguments[1], atoi(arguments[2]))) die("cannot connect");
  expect(amqp_login(connection, arguments[5], 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, arguments[3], arguments[4]),
         "cannot log in");
  amqp_channel_open(connection, 1);
  expect(amqp_get_rpc_reply(connection), "cannot open a channel");
  amqp_bytes_t queue = amqp_cstring_bytes("bench-c-limit");
  amqp_queue_delete(connection, 1, queue, 0, 0);
  amqp_queue_declare(connection, 1, queue, 0, 1, 0, 0, amqp_empty_table);
  expect(amqp_get_rpc_reply(connection), "cannot declare a queue");
  amqp_bytes_t exchange = amqp_cstring_bytes("bench-c-limit"), key = amqp_cstring_bytes("order.placed");
  amqp_exchange_declare(connection, 1, exchange, amqp_cstring_bytes("topic"), 0, 1, 0, 0, amqp_empty_table);
  expect(amqp_get_rpc_reply(connection), "cannot declare an exchange");
  amqp_queue_bind(connection, 1, queue, exchange, key, amqp_empty_table);
  expect(amqp_get_rpc_reply(connection), "cannot bind the queue");
  amqp_confirm_select(connection, 1);
  expect(amqp_get_rpc_reply(connection), "cannot have confirms");

  char text[BODY];
  memset(text, 'x', BODY);
  amqp_bytes_t body = {BODY, text};
  amqp_basic_properties_t properties;
  memset(&properties, 0, sizeof properties);
  properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
  properties.content_type = amqp_cstring_bytes("application/json");
  properties.delivery_mode = AMQP_DELIVERY_PERSISTENT;

  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  uint64_t sent = 0, confirmed = 0;
  int found;
  while (confirmed < messages) {
    while (sent < messages && sent - confirmed < WINDOW) {
      char id[32];
      snprintf(id, sizeof id, "%llu", (unsigned long long)sent);
      properties.message_id = amqp_cstring_bytes(id);
      if (amqp_basic_publish(connection, 1, exchange, key, 1, 0, &properties, body)) die("cannot publish");
      sent += 1;
      if (sent % LOOK_EVERY == 0) do confirmed = answered(connection, confirmed, 0, &found); while (found);
    }
    if (confirmed < messages) confirmed = answered(connection, confirmed, 1, &found);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  printf("{\"per_second\": %f}\n", (double)messages / seconds);
  amqp_queue_delete(connection, 1, queue, 0, 0);
  amqp_exchange_delete(connection, 1, exchange, 0);
  amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(connection);
  return 0;
}
