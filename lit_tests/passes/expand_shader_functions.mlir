// RUN: pcp-opt %s --pcp-expand-shader-functions --split-input-file | filecheck %s

// Long division, 8 bits a round.
// CHECK-LABEL: func.func @remainder
// CHECK: stablehlo.while
// CHECK: stablehlo.shift_left
// CHECK: stablehlo.remainder %{{.*}} : tensor<3xui32>
// CHECK-NOT: stablehlo.remainder %{{.*}} : tensor<3xf32>
// CHECK: return
func.func @remainder(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.remainder %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// In f32, rounded once.
// CHECK-LABEL: func.func @narrow
// CHECK: %[[X:.*]] = stablehlo.convert %arg0 : (tensor<3xf16>) -> tensor<3xf32>
// CHECK: %[[U:.*]] = stablehlo.add %[[X]]
// CHECK: stablehlo.bitcast_convert %[[U]] : (tensor<3xf32>) -> tensor<3xui32>
// CHECK-NOT: log_plus_one
// CHECK: %[[Y:.*]] = stablehlo.convert %{{.*}} : (tensor<3xf32>) -> tensor<3xf16>
// CHECK: return %[[Y]]
func.func @narrow(%x: tensor<3xf16>) -> tensor<3xf16> {
  %0 = stablehlo.log_plus_one %x : tensor<3xf16>
  return %0 : tensor<3xf16>
}

// -----

// Integers have exact ones, complex numbers none of these.
// CHECK-LABEL: func.func @others
// CHECK-NEXT: stablehlo.remainder
// CHECK-NEXT: stablehlo.log_plus_one
// CHECK-NEXT: return
func.func @others(%x: tensor<3xi32>, %z: tensor<3xcomplex<f32>>)
    -> (tensor<3xi32>, tensor<3xcomplex<f32>>) {
  %0 = stablehlo.remainder %x, %x : tensor<3xi32>
  %1 = stablehlo.log_plus_one %z : tensor<3xcomplex<f32>>
  return %0, %1 : tensor<3xi32>, tensor<3xcomplex<f32>>
}
