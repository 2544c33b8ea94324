// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// A fill of 64 bits that are not 32 bits twice is chosen behind a padding by zeros.

// CHECK-LABEL: func.func @double
// CHECK: %[[INSIDE:.*]] = stablehlo.pad %{{.*}}, %{{.*}} : (tensor<2xi1>, tensor<i1>)
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f64>
// CHECK: %[[PADDED:.*]] = stablehlo.pad %arg0, %[[ZERO]]
// CHECK: stablehlo.select %[[INSIDE]], %[[PADDED]]
func.func @double(%x: tensor<2xf64>) -> tensor<5xf64> {
  %c = stablehlo.constant dense<-1.5> : tensor<f64>
  %0 = stablehlo.pad %x, %c, low = [1], high = [2], interior = [0] : (tensor<2xf64>, tensor<f64>) -> tensor<5xf64>
  return %0 : tensor<5xf64>
}

// -----

// Minus one is all ones: 32 bits twice.

// CHECK-LABEL: func.func @ones
// CHECK-NOT: stablehlo.select
func.func @ones(%x: tensor<2xi64>) -> tensor<5xi64> {
  %c = stablehlo.constant dense<-1> : tensor<i64>
  %0 = stablehlo.pad %x, %c, low = [1], high = [2], interior = [0] : (tensor<2xi64>, tensor<i64>) -> tensor<5xi64>
  return %0 : tensor<5xi64>
}

// -----

// An update of such a constant updates a copy.

// CHECK-LABEL: func.func @update
// CHECK: %[[OWN:.*]] = stablehlo.select
// CHECK: stablehlo.dynamic_update_slice %[[OWN]], %arg0
func.func @update(%x: tensor<2xi64>, %i: tensor<i32>) -> tensor<5xi64> {
  %c = stablehlo.constant dense<7> : tensor<5xi64>
  %0 = stablehlo.dynamic_update_slice %c, %x, %i : (tensor<5xi64>, tensor<2xi64>, tensor<i32>) -> tensor<5xi64>
  return %0 : tensor<5xi64>
}

// -----

// The padding of a window over f64 becomes a pad of its own.

// CHECK-LABEL: func.func @window
// CHECK: %[[PADDED:.*]] = stablehlo.select
// CHECK: stablehlo.reduce_window"(%[[PADDED]]
// CHECK-NOT: padding
// CHECK: return
func.func @window(%x: tensor<6xf64>) -> tensor<6xf64> {
  %c = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
  %0 = "stablehlo.reduce_window"(%x, %c) <{padding = dense<1> : tensor<1x2xi64>, window_dimensions = array<i64: 3>}> ({
  ^bb0(%a: tensor<f64>, %b: tensor<f64>):
    %m = stablehlo.maximum %a, %b : tensor<f64>
    stablehlo.return %m : tensor<f64>
  }) : (tensor<6xf64>, tensor<f64>) -> tensor<6xf64>
  return %0 : tensor<6xf64>
}
