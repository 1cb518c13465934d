/* The byte stream to the host and the session on it. */
#ifndef SESSION_H
#define SESSION_H

#include "frame.h"
#include "guest.h"

/* Listens, or takes stdin and stdout as the one connection. */
bool session_open(void);
uint64_t session_tick(uint64_t now);
bool session_gone(void);

/* Whether someone has greeted, has room for another frame, and how much output it may be sent. */
bool session_ready(void);
uint64_t session_credit(void);
void session_add_credit(uint32_t bytes);

void session_send(uint32_t type, uint32_t id, const uint8_t *payload, uint32_t length);
void session_error(uint32_t id, int code, const char *text);
/* One OUTPUT frame; uses up credit. */
void session_output(uint32_t id, uint32_t stream, uint64_t offset, const uint8_t *bytes, uint32_t length);
/* A HELLO was accepted: its sender is the session now, with this much credit. */
void session_begin(uint32_t credit);

/* dispatch.c */
void dispatch(const struct frame *frame);

#endif
