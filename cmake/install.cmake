# Installs library, headers, pkg-config and CMake files, man pages; cmd/haul installs the command. The component
# `runtime` has what programs need to run; it is also the wheel's, with the component `python` (pyproject.toml).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS haul haul_services EXPORT haulTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/haul/haul.h include/haul/device.h include/haul/access.h
  include/haul/file.h
  include/haul/broadcast.h include/haul/cache.h include/haul/world.h include/haul/directory.h include/haul/stats.h include/haul/log.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/haul)

file(RELATIVE_PATH HAUL_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" HAUL_PC_TO_PREFIX "${HAUL_PC_TO_PREFIX}")
foreach(package haul haul-services hf3fs_api_shared)
  configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(HAUL_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/haul)
configure_package_config_file(cmake/haulConfig.cmake.in haulConfig.cmake
  INSTALL_DESTINATION ${HAUL_PACKAGE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(haulConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT haulTargets NAMESPACE haul:: DESTINATION ${HAUL_PACKAGE_DIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/haulConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/haulConfigVersion.cmake DESTINATION ${HAUL_PACKAGE_DIR})

# systemd units for a node and for mounts. They contain the command's folder, which is known at install time
# (`make install PREFIX=/usr`); several installs may run at a time.
foreach(unit haul.service haul-mount@.service)
  install(CODE "
    set(bindir \"${CMAKE_INSTALL_BINDIR}\")
    if(NOT IS_ABSOLUTE \"\${bindir}\")
      set(bindir \"\${CMAKE_INSTALL_PREFIX}/\${bindir}\")
    endif()
    set(unit \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${unit}\")
    message(STATUS \"Installing: \$ENV{DESTDIR}\${unit}\")
    configure_file(\"${CMAKE_SOURCE_DIR}/packaging/systemd/${unit}.in\"
      \"\$ENV{DESTDIR}\${unit}\" @ONLY)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${unit}\")")
endforeach()
install(FILES packaging/grafana/haul.json DESTINATION ${CMAKE_INSTALL_DATADIR}/haul/grafana)
install(FILES packaging/systemd/haul.socket DESTINATION lib/systemd/system)
install(FILES packaging/systemd/haul.sysusers DESTINATION lib/sysusers.d RENAME haul.conf)

file(GLOB HAUL_CALL_PAGES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.3)
install(FILES ${HAUL_CALL_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)

# Each further name of a page has a page that leads to it: man(1) knows names only after mandb(8) has run.
set(HAUL_CALL_LINKS ${CMAKE_BINARY_DIR}/man3)
file(REMOVE_RECURSE ${HAUL_CALL_LINKS})
file(MAKE_DIRECTORY ${HAUL_CALL_LINKS})
foreach(page ${HAUL_CALL_PAGES})
  get_filename_component(file ${page} NAME)
  file(STRINGS ${page} names REGEX "^\\.Nm haul_")
  list(TRANSFORM names REPLACE "^\\.Nm (haul_[a-z0-9_]*).*" "\\1")
  foreach(name ${names})
    if(NOT EXISTS ${CMAKE_SOURCE_DIR}/man/${name}.3)
      file(WRITE ${HAUL_CALL_LINKS}/${name}.3 ".so man3/${file}\n")
    endif()
  endforeach()
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${HAUL_CALL_PAGES})
install(DIRECTORY ${HAUL_CALL_LINKS}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
install(FILES ${CMAKE_SOURCE_DIR}/man/haul.conf.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES ${CMAKE_SOURCE_DIR}/man/haul.7 ${CMAKE_SOURCE_DIR}/man/haul-cudahook.7 ${CMAKE_SOURCE_DIR}/man/haul-nccl.7 ${CMAKE_SOURCE_DIR}/man/haul-nixl.7 ${CMAKE_SOURCE_DIR}/man/haul-ucx.7
  ${CMAKE_SOURCE_DIR}/man/haul-usrbio.7
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
