/* Uses the installed C interface from C11. */
#include <stdio.h>
#include <string.h>

#include "oasiskv/oasiskv.h"

static int fail(const char* what) {
  fprintf(stderr, "consumer_c: %s (%s)\n", what, oasiskv_last_error());
  return 1;
}

int main(void) {
  printf("consumer_c: oasiskv %s\n", oasiskv_version());

  oasiskv_geometry geometry = OASISKV_INIT(oasiskv_geometry);
  geometry.layers = 36;
  geometry.kv_heads = 8;
  geometry.head_dim = 128;
  geometry.element_type = OASISKV_BFLOAT16;
  oasiskv_layout layout = OASISKV_INIT(oasiskv_layout);
  if (oasiskv_geometry_layout(&geometry, &layout) != OASISKV_OK) return fail("layout");
  if (layout.entry_bytes != 8192) return fail("an entry of 16 tokens is not 8 KiB");

  geometry.head_dim = 0;
  if (oasiskv_geometry_layout(&geometry, &layout) != OASISKV_INVALID_ARGUMENT) {
    return fail("a geometry without dimensions was accepted");
  }
  if (strstr(oasiskv_last_error(), "head_dim") == NULL) return fail("the error names no field");

  oasiskv_client_options options = OASISKV_INIT(oasiskv_client_options);
  options.address = "127.0.0.1:1"; /* nothing serves there */
  options.rpc_timeout_ms = 500;
  oasiskv_client* client = NULL;
  if (oasiskv_client_connect(&options, &client) != OASISKV_PEER_LOST || client != NULL) {
    return fail("connected to a port that nobody serves");
  }
  printf("consumer_c: ok\n");
  return 0;
}
