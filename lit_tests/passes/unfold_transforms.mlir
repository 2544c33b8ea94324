// RUN: pcp-opt %s --pcp-unfold-transforms | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.fft
// CHECK-COUNT-4: stablehlo.dot_general
// CHECK: stablehlo.complex {{.*}} : tensor<3x8xcomplex<f32>>
func.func @main(%x: tensor<3x8xcomplex<f32>>) -> tensor<3x8xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [8] : (tensor<3x8xcomplex<f32>>) -> tensor<3x8xcomplex<f32>>
  return %0 : tensor<3x8xcomplex<f32>>
}
