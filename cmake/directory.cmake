# Is the directory module built (src/directory)? Only it links these two libraries.
find_path(HAUL_CURL_INCLUDE curl/curl.h)
find_library(HAUL_CURL_LIBRARY curl)
find_path(HAUL_JANSSON_INCLUDE jansson.h)
find_library(HAUL_JANSSON_LIBRARY jansson)
set(HAUL_DIRECTORY ON)
if(NOT HAUL_CURL_INCLUDE OR NOT HAUL_CURL_LIBRARY OR NOT HAUL_JANSSON_INCLUDE OR NOT HAUL_JANSSON_LIBRARY)
  set(HAUL_DIRECTORY OFF)
  message(STATUS "haul is built without directories (etcd://): "
    "sudo apt-get install libcurl4-openssl-dev libjansson-dev")
endif()
