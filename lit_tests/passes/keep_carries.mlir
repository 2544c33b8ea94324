// RUN: pcp-opt %s --split-input-file --pcp-keep-carries | filecheck %s

// A stack of what each round leaves, and one of what it adds to a row of what the loop
// began with: both are filled where they lie, and the old rows are read where they are.

// CHECK-LABEL: func.func @fills
// CHECK: %[[A:.*]] = "flow.tensor.alloca"() : () -> tensor<3x4xf32>
// CHECK-NEXT: %[[S:.*]] = "flow.tensor.transfer"(%[[A]]) {target = #hal.device.promise<@__device_0>}
// CHECK-NEXT: %[[B:.*]] = "flow.tensor.alloca"() : () -> tensor<3x4xf32>
// CHECK-NEXT: %[[T:.*]] = "flow.tensor.transfer"(%[[B]])
// CHECK-NEXT: stablehlo.while({{.*}}, %[[S1:.*]] = %[[S]], %[[T1:.*]] = %[[T]])
// CHECK: do {
// CHECK: dynamic_update_slice %[[S1]]
// CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %arg1
// CHECK: %[[SUM:.*]] = stablehlo.add %[[ROW]]
// CHECK: dynamic_update_slice %[[T1]], %[[SUM]]
func.func @fills(%x: tensor<4xf32>, %old: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %r:4 = stablehlo.while(%i = %zero, %h = %x, %s = %zeros, %t = %old) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %y = stablehlo.add %h, %h : tensor<4xf32>
    %row = stablehlo.reshape %y : (tensor<4xf32>) -> tensor<1x4xf32>
    %s1 = stablehlo.dynamic_update_slice %s, %row, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %was = stablehlo.dynamic_slice %t, %i, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %sum = stablehlo.add %was, %row : tensor<1x4xf32>
    %t1 = stablehlo.dynamic_update_slice %t, %sum, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %y, %s1, %t1 : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
  return %r#2, %r#3 : tensor<3x4xf32>, tensor<3x4xf32>
}

// From the last row to the first, the row by arithmetic; a constant is read as one.

// CHECK-LABEL: func.func @backwards
// CHECK-COUNT-1: flow.tensor.alloca
// CHECK: do {
// CHECK: %[[TWOS:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<1x4xf32>
// CHECK: stablehlo.add %[[TWOS]], %arg0
func.func @backwards(%x: tensor<1x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %twos = stablehlo.constant dense<2.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %zero, %s = %twos) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %at = stablehlo.subtract %two, %i : tensor<i32>
    %was = stablehlo.dynamic_slice %s, %at, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %sum = stablehlo.add %was, %x : tensor<1x4xf32>
    %s1 = stablehlo.dynamic_update_slice %s, %sum, %at, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// Beside it, stacks that stay what they are, and so does the first one. One of which a
// row is not written:

// -----

// CHECK-LABEL: func.func @beside
// CHECK-NOT: flow.tensor
// CHECK-LABEL: func.func @stays
// CHECK-NOT: flow.tensor
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func @stays(%x: tensor<1x4xf32>, %old: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<4x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<4x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<4x4xf32>
  }
  return %r#1 : tensor<4x4xf32>
}

// Of which a round reads another row.

// -----

// CHECK-LABEL: func.func @beside
// CHECK-NOT: flow.tensor
// CHECK-LABEL: func.func @reads_another
// CHECK-NOT: flow.tensor
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func @reads_another(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %was = stablehlo.dynamic_slice %s, %zero, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %sum = stablehlo.add %was, %x : tensor<1x4xf32>
    %s1 = stablehlo.dynamic_update_slice %s, %sum, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// What is written over behind the loop, under another name.

// -----

// CHECK-LABEL: func.func @beside
// CHECK-NOT: flow.tensor
// CHECK-LABEL: func.func @written_later
// CHECK-NOT: flow.tensor
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func @written_later(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  %flat = stablehlo.reshape %r#1 : (tensor<3x4xf32>) -> tensor<12xf32>
  %back = stablehlo.reshape %flat : (tensor<12xf32>) -> tensor<3x4xf32>
  %new = stablehlo.dynamic_update_slice %back, %x, %one, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
  return %r#1, %new : tensor<3x4xf32>, tensor<3x4xf32>
}

// What a round hands on twice.

// -----

// CHECK-LABEL: func.func @beside
// CHECK-NOT: flow.tensor
// CHECK-LABEL: func.func @twice
// CHECK-NOT: flow.tensor
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func @twice(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %s = %old, %t = %old) : tensor<i32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1, %s1 : tensor<i32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
  return %r#1, %r#2 : tensor<3x4xf32>, tensor<3x4xf32>
}

// What a private function writes over may be what a loop carries.

// -----

// CHECK-LABEL: func.func @beside
// CHECK-NOT: flow.tensor
// CHECK-LABEL: func.func private @writes
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func private @writes(%old: tensor<3x4xf32>, %x: tensor<1x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %new = stablehlo.dynamic_update_slice %old, %x, %zero, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
  return %new : tensor<3x4xf32>
}

// Arguments of public functions are not carried: what is written over them is copied, or
// not, as always.

// -----

// CHECK-LABEL: func.func @beside
// CHECK: flow.tensor.alloca
// CHECK-LABEL: func.func @writes
func.func @beside(%x: tensor<1x4xf32>, %old: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %old) : tensor<i32>, tensor<3x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %s1 = stablehlo.dynamic_update_slice %s, %x, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %s1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

func.func @writes(%old: tensor<3x4xf32>, %x: tensor<1x4xf32>) -> tensor<3x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %new = stablehlo.dynamic_update_slice %old, %x, %zero, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
  return %new : tensor<3x4xf32>
}
