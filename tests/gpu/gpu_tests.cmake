# The kernels and the backend on a GPU; without one they skip, naming it.
function(oasiskv_gpu_test name)
  oasiskv_test(NAME ${name} LABEL gpu
    SOURCES ${ARGN}
    DEPS oasiskv::working_set oasiskv::working_set_kernels oasiskv::cuda)
endfunction()

oasiskv_gpu_test(gpu_select_test gpu/select_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_transfer_test gpu/transfer_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_local_block_test gpu/local_block_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_dense_test gpu/dense_test.cc gpu/transfer_rig.cc)
