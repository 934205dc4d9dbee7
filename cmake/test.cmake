# haul_add_test(NAME [NIGHTLY] [TIMEOUT SECONDS] [LABEL LABEL] [ENVIRONMENT A=B...] COMMAND ARG...)
#
# One test program. The label defaults to the name up to its first dot. Exit status 77 is a skip; the
# program prints the reason as "skipped WHAT: WHY". A NIGHTLY test runs only with `ctest -C nightly`.
# The liveness timeout is a minute, so that a busy machine drops no peer. Tests of liveness set their own by
# struct haul_node_config or ENVIRONMENT.
# These take ten seconds or more. They start first, so that none runs alone at the end.
set(HAUL_LONG_TESTS directory.directory conformance.transport_tcp conformance.transport_map_unix
  conformance.transport_rdma_double conformance.transport_tls conformance.doubles_cuda_to_gaudi_rdma
  storage.service_remote storage.mounted_remote rdma.late rdma.faults usrbio.restarts install node.raw_rails
  node.oom cli.bench cli.hosts cli.trace cli.files cli.top cli.readme python.install python.examples python.lmcache
  nccl.traffic_auto services.cache services.cache_device services.broadcast nixl.conformance_tcp node.raw_control
  node.submit rdma.malformed conformance.provider unit.memory_dpdk unit.memory_cuda unit.gaudi_memory sim.seeds sim.cache
  sim.scale cli.push python.torch python.cache)
function(haul_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "NIGHTLY" "TIMEOUT;LABEL" "ENVIRONMENT;COMMAND")
  if(TEST_UNPARSED_ARGUMENTS OR NOT TEST_COMMAND)
    message(FATAL_ERROR "haul_add_test(${name}): ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(NOT TEST_LABEL)
    string(REGEX REPLACE "\\..*" "" TEST_LABEL ${name})
  endif()
  set(cost 0)
  if(name IN_LIST HAUL_LONG_TESTS)
    set(cost 1)
  endif()
  set(when)
  if(TEST_NIGHTLY)
    set(when CONFIGURATIONS nightly)
  endif()
  set(environment HAUL_LIVENESS=60s HAUL_DOUBLES=${HAUL_DOUBLES})
  if(TARGET haul-command)
    list(APPEND environment HAUL=$<TARGET_FILE:haul-command>)
  endif()
  add_test(NAME ${name} COMMAND ${TEST_COMMAND} ${when} COMMAND_EXPAND_LISTS)
  set_tests_properties(${name} PROPERTIES LABELS ${TEST_LABEL} TIMEOUT ${TEST_TIMEOUT} COST ${cost}
    SKIP_RETURN_CODE 77 ENVIRONMENT "${environment};${TEST_ENVIRONMENT}")
endfunction()
