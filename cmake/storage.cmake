# Is the storage module built (src/storage), with its FUSE front end? Only it links these two libraries.
find_path(HAUL_URING_INCLUDE liburing.h)
find_library(HAUL_URING_LIBRARY uring)
find_path(HAUL_FUSE_INCLUDE fuse_lowlevel.h PATH_SUFFIXES fuse3)
find_library(HAUL_FUSE_LIBRARY fuse3)
set(HAUL_STORAGE ON)
if(NOT HAUL_URING_INCLUDE OR NOT HAUL_URING_LIBRARY OR NOT HAUL_FUSE_INCLUDE OR NOT HAUL_FUSE_LIBRARY)
  set(HAUL_STORAGE OFF)
  message(STATUS "haul is built without files for USRBIO (haul mount): "
    "sudo apt-get install liburing-dev libfuse3-dev")
endif()

# The modules' folder relative to the command's, in the build and when installed.
include(GNUInstallDirs)
file(RELATIVE_PATH HAUL_COMMAND_TO_MODULES ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/haul)
