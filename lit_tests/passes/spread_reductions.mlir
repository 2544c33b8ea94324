// RUN: pcp-opt %s --pcp-spread-reductions | filecheck %s

// A long row that no power of two divides: a whole part and a rest.
// CHECK-LABEL: @rows
// CHECK: %[[A:.*]] = stablehlo.slice %arg0 [0:256, 0:50176]
// CHECK-NEXT: %[[B:.*]] = stablehlo.slice %arg0 [0:256, 50176:50257]
// CHECK-NEXT: %[[C:.*]] = stablehlo.reduce(%[[A]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [1]
// CHECK-NEXT: %[[D:.*]] = stablehlo.reduce(%[[B]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [1]
// CHECK-NEXT: %[[E:.*]] = stablehlo.maximum %[[C]], %[[D]]
// CHECK-NEXT: stablehlo.optimization_barrier %[[E]]
func.func @rows(%x: tensor<256x50257xf32>) -> tensor<256xf32> {
  %i = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.maximum across dimensions = [1] : (tensor<256x50257xf32>, tensor<f32>) -> tensor<256xf32>
  return %0 : tensor<256xf32>
}

// Columns: in pieces.
// CHECK-LABEL: @columns
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
// CHECK-NEXT: %[[B:.*]] = stablehlo.reduce(%[[A]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK-NEXT: stablehlo.reduce(%[[B]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
func.func @columns(%x: tensor<2048x256xf32>) -> tensor<256xf32> {
  %i = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [0] : (tensor<2048x256xf32>, tensor<f32>) -> tensor<256xf32>
  return %0 : tensor<256xf32>
}

// A count: in 32 bits.
// CHECK-LABEL: @count
// CHECK: %[[A:.*]] = stablehlo.convert %arg0 : (tensor<256xi1>) -> tensor<256xi32>
// CHECK: %[[B:.*]] = stablehlo.reduce(%[[A]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK: stablehlo.convert %[[B]] : (tensor<i32>) -> tensor<i64>
func.func @count(%b: tensor<256xi1>) -> tensor<i64> {
  %i = stablehlo.constant dense<0> : tensor<i64>
  %x = stablehlo.convert %b : (tensor<256xi1>) -> tensor<256xi64>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [0] : (tensor<256xi64>, tensor<i64>) -> tensor<i64>
  return %0 : tensor<i64>
}

// With another first value a part would have it twice.
// CHECK-LABEL: @others
// CHECK: stablehlo.reduce(%arg0
// CHECK-NEXT: return
func.func @others(%x: tensor<256x50257xf32>) -> tensor<256xf32> {
  %i = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [1] : (tensor<256x50257xf32>, tensor<f32>) -> tensor<256xf32>
  return %0 : tensor<256xf32>
}
